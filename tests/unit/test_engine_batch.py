"""What a batch answers is what the model says, whatever shares the batch.

Tokens are compared exactly although floating-point sums depend on the batch's shape: a sampled token changes only if
its uniform number falls into a gap of about 1e-7, which none of these seeds hits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from actors.engines import batch_decode
from actors.engines.batch_decode import BatchDecoder
from async_agent_rl.errors import EngineError
from async_agent_rl.policy import Completion, GenerationRequest
from tests.tiny import EOS_ID, VOCABULARY, tiny_model

# Stopping at a third of all tokens makes rows finish at every length, so the cache is compacted often.
MANY_STOPS = range(0, VOCABULARY, 3)


def make_request(length: int, seed: int, *, prompt_seed: int | None = None, **changes: Any) -> GenerationRequest:
    rng = np.random.default_rng(seed if prompt_seed is None else prompt_seed)
    fields: dict[str, Any] = {
        "prompt_ids": rng.integers(0, 256, length).astype(np.int32),
        "order": (seed, 0, 0),
        "seed": seed,
        "temperature": 0.7,
        "max_tokens": 12,
    }
    return GenerationRequest(**(fields | changes))


def mixed_requests() -> list[GenerationRequest]:
    """Twenty rows: three lengths, copies of one prompt, greedy and sampled, two limits."""
    rows = [make_request(length, seed) for seed, length in enumerate([5, 5, 9, 30, 30, 31, 7, 5])]
    rows += [make_request(17, seed, prompt_seed=99) for seed in range(20, 28)]
    rows += [make_request(9, 40, temperature=0.0), make_request(31, 41, temperature=0.0)]
    rows += [make_request(6, 42, max_tokens=3), make_request(8, 43, temperature=1.3)]
    return rows


def rescore(model: Any, request: GenerationRequest, answer: Completion) -> torch.Tensor:
    """[A] log-probs of the answer by one full forward pass of the row alone, without any cache."""
    ids = torch.from_numpy(np.concatenate([request.prompt_ids, answer.token_ids]).astype(np.int64))[None]
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1]
    scaled = torch.log_softmax(logits / (request.temperature or 1.0), dim=-1)
    return scaled.gather(1, ids[0, len(request.prompt_ids) :, None])[:, 0]


def generate_all(decoder: BatchDecoder, requests: Sequence[GenerationRequest]) -> list[Completion]:
    answers: dict[int, Completion] = {}
    for batch in decoder.plan(requests):
        answers |= zip(batch, decoder.generate([requests[i] for i in batch], version=3), strict=True)
    return [answers[i] for i in range(len(requests))]


@pytest.mark.parametrize("prefill_tokens", [10, 64, 4096])
def test_log_probs_equal_a_full_forward_pass_of_each_row(monkeypatch: pytest.MonkeyPatch, prefill_tokens: int) -> None:
    monkeypatch.setattr(batch_decode, "PREFILL_TOKENS", prefill_tokens)
    model = tiny_model()
    requests = mixed_requests()
    answers = BatchDecoder(model, MANY_STOPS).generate(requests, version=3)
    assert len({len(answer.token_ids) for answer in answers}) > 4
    for request, answer in zip(requests, answers, strict=True):
        expected = rescore(model, request, answer)
        assert torch.allclose(torch.from_numpy(answer.logprobs), expected, atol=1e-4)
        assert answer.versions.tolist() == [3] * len(answer.token_ids)


def test_a_row_gets_the_same_answer_alone_and_in_company() -> None:
    decoder = BatchDecoder(tiny_model(), MANY_STOPS)
    requests = mixed_requests()
    together = decoder.generate(requests, version=0)
    for request, answer in zip(requests, together, strict=True):
        (alone,) = decoder.generate([request], version=0)
        assert alone.token_ids.tolist() == answer.token_ids.tolist()
        assert np.allclose(alone.logprobs, answer.logprobs, atol=1e-5)


def test_the_same_batch_gives_the_same_bits_again() -> None:
    decoder = BatchDecoder(tiny_model(), MANY_STOPS)
    first, second = (decoder.generate(mixed_requests(), version=0) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert one.token_ids.tobytes() == other.token_ids.tobytes()
        assert one.logprobs.tobytes() == other.logprobs.tobytes()


def test_greedy_answers_equal_the_argmax_of_full_forward_passes() -> None:
    model = tiny_model()
    request = make_request(11, 1, temperature=0.0, max_tokens=6)
    (answer,) = BatchDecoder(model, {EOS_ID}).generate([request], version=0)
    ids = request.prompt_ids.tolist()
    for token in answer.token_ids.tolist():
        with torch.no_grad():
            assert int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()) == token
        ids.append(token)


def test_sliding_window_models_agree_with_a_full_forward_pass() -> None:
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=6, initializer_range=0.4,
    )  # fmt: skip
    model: Any = MistralForCausalLM(config)
    model.eval()
    requests = [*mixed_requests(), make_request(30, 60, prompt_seed=3)]
    answers = generate_all(BatchDecoder(model, MANY_STOPS), requests)
    for request, answer in zip(requests, answers, strict=True):
        expected = rescore(model, request, answer)
        assert torch.allclose(torch.from_numpy(answer.logprobs), expected, atol=1e-4)


def test_an_answer_ends_with_a_stop_token_or_at_its_limit() -> None:
    requests = mixed_requests()
    answers = BatchDecoder(tiny_model(), MANY_STOPS).generate(requests, version=0)
    assert {answer.finish for answer in answers} == {"stop", "length"}
    for request, answer in zip(requests, answers, strict=True):
        stops = [token in MANY_STOPS for token in answer.token_ids.tolist()]
        assert not any(stops[:-1])
        assert answer.finish == ("stop" if stops[-1] else "length")
        assert stops[-1] or len(answer.token_ids) == request.max_tokens


def test_finished_rows_leave_the_forward_passes() -> None:
    model = tiny_model()
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _m, _a, kwargs: sizes.append(len(kwargs["input_ids"])), with_kwargs=True)
    requests = [make_request(8, seed, max_tokens=2 if seed < 6 else 10) for seed in range(8)]
    BatchDecoder(model, ()).generate(requests, version=0)
    assert sizes == [8, 8, *[2] * 8]  # prompts, then the second token of all, then two rows go on


def test_equal_prompts_are_prefilled_once() -> None:
    model = tiny_model()
    sizes: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(
        lambda _m, _a, kwargs: sizes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    requests = [make_request(20, seed, prompt_seed=seed // 8, max_tokens=1) for seed in range(16)]
    BatchDecoder(model, ()).generate(requests, version=0)
    assert sizes == [(2, 20)]


def test_plan_holds_every_row_once_in_batches_of_similar_length() -> None:
    requests = [make_request(length, seed) for seed, length in enumerate([50, 4, 50, 4, 4, 50, 4, 50, 4])]
    batches = BatchDecoder(tiny_model(), (), max_rows=5).plan(requests)
    assert sorted(index for batch in batches for index in batch) == list(range(9))
    assert sorted(batches[0]) == [1, 3, 4, 6, 8]


def test_plan_does_not_depend_on_the_sequence_of_requests() -> None:
    requests = mixed_requests()
    decoder = BatchDecoder(tiny_model(), (), max_rows=8)

    def orders(rows: list[GenerationRequest]) -> list[list[tuple[int, ...]]]:
        return [[rows[i].order for i in batch] for batch in decoder.plan(rows)]

    assert orders(requests) == orders(requests[::-1])


def test_plan_of_nothing_is_nothing() -> None:
    assert BatchDecoder(tiny_model(), ()).plan([]) == []


def test_logits_that_are_not_finite_are_an_engine_error() -> None:
    model = tiny_model()
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(EngineError, match="not finite at version 4"):
        BatchDecoder(model, {EOS_ID}).generate([make_request(5, 0)], version=4)
