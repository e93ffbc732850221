"""Log-probs equal those of plain forward passes, whatever shares the micro-batch.

Run: python -m pytest tests/unit/test_logprobs.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from async_agent_rl.errors import InputError
from learner.batch import Rows, build_rows
from learner.logprobs import Layout, TokenScorer, tree_mask
from tests.learner_samples import random_groups, tiny_model


def sample_rows(seed: int = 1) -> Rows:
    return build_rows(random_groups(seed, num_groups=3, size=6), "format", "state", "decoupled")


def by_the_book(model: Any, rows: Rows, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies [T] from one unpadded forward pass a row."""
    logprobs, entropies = [], []
    for prompt, action in zip(rows.prompt_ids, rows.action_ids, strict=True):
        ids = torch.tensor([*prompt.tolist(), *action.tolist()])
        logits = model(input_ids=ids[None]).logits[0, len(prompt) - 1 : -1] / temperature
        logprobs.append(torch.log_softmax(logits, -1)[range(len(action)), ids[len(prompt) :]])
        entropies.append(-(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1))
    return torch.cat(logprobs), torch.cat(entropies)


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_every_layout_equals_plain_forward_passes(layout: Layout, temperature: float) -> None:
    model, rows = tiny_model(), sample_rows()
    scorer = TokenScorer(model, temperature, layout)
    got, entropies = scorer.score_all(rows, np.arange(rows.num_rows), max_rows=7)
    with torch.no_grad():
        expected, expected_entropies = by_the_book(model, rows, temperature)
    assert torch.allclose(got, expected, atol=2e-5)
    assert torch.allclose(entropies, expected_entropies, atol=2e-5)


@pytest.mark.parametrize("layout", list(Layout))
def test_gradients_equal_those_of_plain_forward_passes(layout: Layout) -> None:
    model, rows = tiny_model(dtype=torch.float64), sample_rows()
    weights = torch.linspace(-1, 1, rows.num_tokens)

    def take_gradients() -> list[torch.Tensor]:
        grads = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        return grads

    torch.autograd.backward((by_the_book(model, rows, 1.0)[0] * weights).sum())
    expected = take_gradients()
    scorer = TokenScorer(model, 1.0, layout)
    for batch in scorer.micro_batches(rows, np.arange(rows.num_rows), max_rows=5):
        torch.autograd.backward((scorer.score(batch).logprobs * weights[torch.from_numpy(batch.token_index)]).sum())
    for got, want in zip(take_gradients(), expected, strict=True):
        assert torch.allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("qwen2", Layout.SHARED_PROMPTS),
        ("llama", Layout.SHARED_PROMPTS),
        ("gpt2", Layout.SHARED_PROMPTS),
        ("gemma2", Layout.FULL_LOGITS),
    ],
)
def test_the_fastest_right_layout_is_found_by_trying(kind: str, layout: Layout) -> None:
    """Gemma 2 squashes its logits behind the output head, so head(decoder(x)) is wrong for it."""
    model = tiny_model(kind)
    scorer = TokenScorer(model, 1.0)
    assert scorer.layout is layout
    rows = sample_rows()
    got, _ = scorer.score_all(rows, np.arange(rows.num_rows), max_rows=8)
    with torch.no_grad():
        assert torch.allclose(got, by_the_book(model, rows, 1.0)[0], atol=2e-5)


def test_a_decoder_that_ignores_the_mask_loses_shared_prompts_only() -> None:
    model = tiny_model()
    decoder = model.get_decoder()
    whole = decoder.forward

    def forward(input_ids: Any, position_ids: Any = None, **_: Any) -> Any:
        return whole(input_ids=input_ids, use_cache=False)

    decoder.forward = forward
    assert TokenScorer(model, 1.0).layout is Layout.SEPARATE_ROWS


def test_a_model_that_looks_ahead_is_refused() -> None:
    model = tiny_model()
    whole = model.forward

    def forward(input_ids: Any, **_: Any) -> Any:
        return whole(input_ids=input_ids.flip(1), use_cache=False)  # the first position then saw all the others

    model.forward = forward
    with pytest.raises(InputError, match="a causal LM is needed"):
        TokenScorer(model, 1.0)


def test_tokens_of_rows_that_were_not_selected_have_no_score() -> None:
    rows = sample_rows()
    got, _ = TokenScorer(tiny_model(), 1.0).score_all(rows, np.array([1]), max_rows=4)
    scored = torch.isfinite(got).nonzero().flatten().tolist()
    assert scored == list(range(int(rows.offsets[1]), int(rows.offsets[2])))


def test_the_tree_mask_shows_the_prompt_and_the_own_response_only() -> None:
    (mask,) = tree_mask(torch.tensor([[0, 0, 1, 2, 2, -1]]), torch.float32)
    visible = (mask[0] == 0).int().tolist()
    assert visible == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 1, 0, 1, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]
