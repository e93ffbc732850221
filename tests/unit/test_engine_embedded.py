"""Many coroutines, one model: batches, versions, failures and the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import torch

from actors.engines.embedded import KV_POLICY, EmbeddedEngine, stop_token_ids
from actors.engines.idle_clock import IdleClock, Occupation
from async_agent_rl.errors import EngineError, RunError
from async_agent_rl.policy import Completion, GenerationRequest
from tests.tiny import EOS_ID, tiny_model, tiny_tokenizer


def make_request(order: int, *, length: int = 6, max_tokens: int = 4) -> GenerationRequest:
    ids = np.random.default_rng(order).integers(0, 256, length).astype(np.int32)
    return GenerationRequest(prompt_ids=ids, order=(order, 0, 0), seed=order, temperature=1.0, max_tokens=max_tokens)


@asynccontextmanager
async def running(model: Any, **options: Any) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine(model, {EOS_ID}, **({"max_batch": 64, "threads": 1, "version": 0} | options))
    try:
        yield engine
    finally:
        await engine.close()


def record_batches(engine: EmbeddedEngine) -> list[list[int]]:
    """Orders of the rows of every batch the engine will compute."""
    batches: list[list[int]] = []
    generate = engine._decoder.generate

    def recorded(requests: Sequence[GenerationRequest], version: int) -> list[Completion]:
        batches.append([request.order[0] for request in requests])
        return generate(requests, version)

    engine._decoder.generate = recorded  # type: ignore[method-assign]
    return batches


def signal_forward(model: Any) -> threading.Event:
    """Set from the model's next forward pass on."""
    computing = threading.Event()
    model.register_forward_pre_hook(lambda *_args: computing.set())
    return computing


async def test_coroutines_that_ask_at_once_share_a_batch() -> None:
    async with running(tiny_model()) as engine:
        batches = record_batches(engine)
        answers = await asyncio.gather(*(engine.generate(make_request(i)) for i in range(7)))
    assert [sorted(batch) for batch in batches] == [list(range(7))]
    assert all(1 <= len(answer.token_ids) <= 4 for answer in answers)


async def test_the_event_loop_goes_on_while_the_model_computes() -> None:
    async with running(tiny_model()) as engine:
        answer = asyncio.ensure_future(engine.generate(make_request(0, length=200, max_tokens=200)))
        turns = 0
        while not answer.done():
            await asyncio.sleep(0.001)
            turns += 1
    assert turns > 3


async def test_every_token_carries_the_version_that_was_adopted_before_its_batch() -> None:
    newer = {name: tensor.clone() for name, tensor in tiny_model(seed=1).state_dict().items()}
    request = make_request(3)
    async with running(tiny_model(seed=0)) as engine:
        before = await engine.generate(request)
        engine.adopt(5, newer)
        assert engine.version == 5
        after = await engine.generate(request)
        assert engine.counters.adoptions == 1
    async with running(tiny_model(seed=1), version=5) as engine:
        fresh = await engine.generate(request)
    assert set(before.versions.tolist()) == {0}
    assert set(after.versions.tolist()) == {5}
    assert after.token_ids.tolist() == fresh.token_ids.tolist()
    assert np.array_equal(after.logprobs, fresh.logprobs)
    assert not np.array_equal(before.logprobs[:1], after.logprobs[:1])


async def test_a_batch_that_is_being_computed_keeps_its_weights() -> None:
    request = make_request(3, length=100, max_tokens=100)
    model = tiny_model(seed=0)
    async with running(model) as engine:
        expected = await engine.generate(request)
        computing = signal_forward(model)
        running_one = asyncio.ensure_future(engine.generate(request))
        assert await asyncio.to_thread(computing.wait, 5)
        engine.adopt(1, tiny_model(seed=1).state_dict())
        answer = await running_one
    assert set(answer.versions.tolist()) == {0}
    assert answer.logprobs.tobytes() == expected.logprobs.tobytes()


async def test_a_tied_copy_may_be_left_out_and_nothing_else() -> None:
    async with running(tiny_model()) as engine:
        tensors = tiny_model(seed=1).state_dict()
        tensors.pop("lm_head.weight")
        engine.adopt(1, tensors)
        tensors.pop("model.norm.weight")
        with pytest.raises(RunError, match=r"version 2 .* model\.norm\.weight is missing"):
            engine.adopt(2, tensors)
        assert engine.version == 1


async def test_weights_of_another_shape_are_refused() -> None:
    async with running(tiny_model()) as engine:
        tensors = dict(tiny_model().state_dict()) | {"model.norm.weight": torch.ones(3)}
        with pytest.raises(RunError, match=r"model\.norm\.weight is of another shape"):
            engine.adopt(1, tensors)


async def test_deterministic_batches_wait_for_all_live_episodes_and_are_sorted() -> None:
    async with running(tiny_model(), deterministic=True) as engine:
        batches = record_batches(engine)
        engine.set_live(3)
        asked = [asyncio.ensure_future(engine.generate(make_request(order))) for order in (9, 4)]
        await asyncio.sleep(0.05)
        assert batches == []
        asked.append(asyncio.ensure_future(engine.generate(make_request(7))))
        await asyncio.gather(*asked)
        assert sorted(batches[0]) == [4, 7, 9]
        engine.set_live(2)  # one episode ended, so two are enough
        await asyncio.gather(*(engine.generate(make_request(order)) for order in (4, 9)))
    first = batches[0]
    assert len(batches) == 2
    assert [order for order in first if order != 7] == batches[1]


async def test_the_last_episode_that_ends_releases_a_deterministic_batch() -> None:
    async with running(tiny_model(), deterministic=True) as engine:
        engine.set_live(2)
        asked = asyncio.ensure_future(engine.generate(make_request(1)))
        await asyncio.sleep(0.02)
        assert not asked.done()
        engine.set_live(1)
        answer = await asyncio.wait_for(asked, 5)
    assert len(answer.token_ids) >= 1


async def test_a_model_that_fails_is_an_engine_error_for_all_who_wait_and_the_next_batch_works() -> None:
    model = tiny_model()

    def explode(*_args: object) -> None:
        raise MemoryError("no room for the cache")

    async with running(model) as engine:
        hook = model.register_forward_pre_hook(explode)
        asked = await asyncio.gather(*(engine.generate(make_request(i)) for i in range(3)), return_exceptions=True)
        assert [type(error) for error in asked] == [EngineError] * 3
        assert "MemoryError: no room for the cache" in str(asked[0])
        hook.remove()
        assert len((await engine.generate(make_request(0))).token_ids) >= 1


async def test_tokens_the_model_does_not_know_fail_their_own_request_only() -> None:
    async with running(tiny_model()) as engine:
        alien = GenerationRequest(
            prompt_ids=np.array([999], dtype=np.int32), order=(0,), seed=0, temperature=1.0, max_tokens=2
        )
        good, bad = await asyncio.gather(
            engine.generate(make_request(0)), engine.generate(alien), return_exceptions=True
        )
    assert isinstance(good, Completion)
    assert isinstance(bad, EngineError)
    assert "999..999" in str(bad)


async def test_closing_fails_those_who_wait_and_those_who_come_later() -> None:
    async with running(tiny_model(), deterministic=True) as engine:
        engine.set_live(2)
        asked = asyncio.ensure_future(engine.generate(make_request(0)))
        await asyncio.sleep(0.01)
    with pytest.raises(EngineError, match="closed"):
        await asked
    with pytest.raises(EngineError, match="closed"):
        await engine.generate(make_request(1))
    await engine.close()


async def test_closing_ends_a_batch_in_the_middle() -> None:
    model = tiny_model()
    computing = signal_forward(model)
    async with running(model) as engine:
        asked = asyncio.ensure_future(engine.generate(make_request(0, length=10, max_tokens=100_000)))
        assert await asyncio.to_thread(computing.wait, 5)
    with pytest.raises(EngineError, match="closed"):
        await asked


async def test_closing_before_a_batch_has_begun() -> None:
    release = threading.Event()
    async with running(tiny_model()) as engine:
        engine._executor.submit(release.wait, 5)
        asked = asyncio.ensure_future(engine.generate(make_request(0)))
        await asyncio.sleep(0.02)
        await engine.close()
        release.set()
    with pytest.raises(EngineError, match="closed"):
        await asked


async def test_an_episode_that_is_cancelled_leaves_the_others_their_answers() -> None:
    async with running(tiny_model()) as engine:
        lost, kept = (asyncio.ensure_future(engine.generate(make_request(i))) for i in range(2))
        await asyncio.sleep(0)
        lost.cancel()
        assert len((await kept).token_ids) >= 1
    assert lost.cancelled()


async def test_counters_add_up() -> None:
    async with running(tiny_model()) as engine:
        answers = await asyncio.gather(*(engine.generate(make_request(i, length=5 + i)) for i in range(4)))
        counters = engine.counters
    assert counters.rows == 4
    assert counters.prompt_tokens == 5 + 6 + 7 + 8
    assert counters.generated_tokens == sum(len(answer.token_ids) for answer in answers)
    assert counters.busy_s > 0
    assert engine.kv_policy == KV_POLICY


def test_idle_time_is_told_apart() -> None:
    now = iter([0.0, 2.0, 5.0, 6.0, 6.0, 6.0])
    clock = IdleClock(lambda: next(now))
    clock.switch(Occupation.ENVIRONMENT)
    clock.switch(Occupation.BUSY)
    assert clock.seconds(Occupation.BUSY) == 1.0
    assert clock.seconds(Occupation.NO_LEASE) == 2.0
    assert clock.seconds(Occupation.ENVIRONMENT) == 3.0


def test_stop_tokens_are_those_of_tokenizer_and_generation_config() -> None:
    model, tokenizer = tiny_model(), tiny_tokenizer()
    model.generation_config.eos_token_id = [7, 9]
    assert stop_token_ids(model, tokenizer) == {7, 9, EOS_ID}
