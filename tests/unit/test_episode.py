"""One lease, from reset to trajectory or to a failure that is never a reward."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from actors.episode import Player, PlayRules
from actors.latency import draw_latency_s
from actors.prompts import PromptCodec
from async_agent_rl.config import Latency, parse_latency
from async_agent_rl.env import Env, Observation, Split, StepResult, Task
from async_agent_rl.errors import EngineError, EnvError, FailureKind, RunError
from async_agent_rl.policy import Completion, GenerationRequest
from async_agent_rl.protocol import Lease, LeaseFailed, Trajectory, read_trajectory, trajectory_frames
from async_agent_rl.seeds import Purpose, derive_seed
from tests.tiny import EOS_ID, EvenEnv, EvenWorld, tiny_tokenizer

RULES = PlayRules(
    max_steps=5,
    max_prompt_tokens=60,
    max_response_tokens=8,
    temperature=1.0,
    step_timeout_s=5.0,
    latency=Latency("none"),
)
LEASE = Lease(lease_id=11, group=2, member=1, attempt=0, task_index=3, seed=77)


class ScriptedEngine:
    """Answers with given texts, in turn."""

    version = 4
    kv_policy = "scripted"

    def __init__(self, *texts: str) -> None:
        self._texts = list(texts)
        self.requests: list[GenerationRequest] = []

    async def generate(self, request: GenerationRequest) -> Completion:
        self.requests.append(request)
        if not self._texts:
            raise EngineError("out of texts")
        ids = np.array([*tiny_tokenizer()(self._texts.pop(0)).input_ids, EOS_ID], dtype=np.int32)
        return Completion(
            token_ids=ids,
            logprobs=np.full(len(ids), -0.5, dtype=np.float32),
            versions=np.full(len(ids), self.version, dtype=np.int32),
            finish="stop",
        )

    async def close(self) -> None: ...


class HookedWorld:
    """EvenWorld whose environments run a hook at each step."""

    def __init__(self, hook: Callable[[], Any], options: Mapping[str, Any] | None = None) -> None:
        self._inner = EvenWorld(options or {})
        self._hook = hook
        self.envs: list[HookedEnv] = []

    def num_tasks(self, split: Split) -> int:
        return self._inner.num_tasks(split)

    def new_env(self) -> Env:
        self.envs.append(HookedEnv(self._inner.new_env(), self._hook))
        return self.envs[-1]


class HookedEnv:
    def __init__(self, inner: Any, hook: Callable[[], Any]) -> None:
        self.inner = inner
        self._hook = hook

    async def reset(self, task: Task) -> Observation:
        self.task = task
        return await self.inner.reset(task)  # type: ignore[no-any-return]

    async def step(self, response: str) -> StepResult:
        outcome = self._hook()
        if asyncio.iscoroutine(outcome):
            await outcome
        return await self.inner.step(response)  # type: ignore[no-any-return]

    async def close(self) -> None:
        await self.inner.close()


def make_player(world: Any, engine: ScriptedEngine, rules: PlayRules = RULES) -> Player:
    return Player(world, engine, PromptCodec(tiny_tokenizer()), rules, split="train", actor="actor-0", incarnation=1)


async def play(world: Any, engine: ScriptedEngine, rules: PlayRules = RULES) -> Trajectory:
    result = await make_player(world, engine, rules).play(LEASE)
    assert isinstance(result, Trajectory)
    return result


async def fail(world: Any, engine: ScriptedEngine, rules: PlayRules = RULES) -> LeaseFailed:
    result = await make_player(world, engine, rules).play(LEASE)
    assert isinstance(result, LeaseFailed)
    assert result.lease_id == LEASE.lease_id
    return result


async def test_a_trajectory_holds_what_was_read_written_and_paid() -> None:
    trajectory = await play(EvenWorld({}), ScriptedEngine("abc", "four"))
    header = trajectory.header
    first, second = trajectory.turn_arrays()
    assert bytes(tiny_tokenizer().decode(first[1]), "utf-8") == b"task 3 step 0" + b"." * 40
    assert first[2].tolist()[-1] == EOS_ID
    assert [turn.reward for turn in header.turns] == [0.0, 1.0]
    assert [turn.action for turn in header.turns] == ["odd[]", "even[]"]
    assert [turn.is_admissible for turn in header.turns] == [False, True]
    assert [turn.state_key for turn in header.turns] == ["task 3 step 0", "task 3 step 1"]
    assert header.turns[1].observation_key == "task 3 step 1"
    assert (header.won, header.score, header.truncated) == (True, 0.5, False)
    assert (header.lease_id, header.group, header.member, header.task_index) == (11, 2, 1, 3)
    assert (header.actor, header.incarnation, header.kv_policy) == ("actor-0", 1, "scripted")
    assert header.world_id == "even"
    assert trajectory.versions.tolist() == [4] * (4 + 5)
    assert second[3].tolist() == [-0.5] * 5
    assert header.started_s <= header.finished_s


async def test_a_trajectory_survives_the_wire() -> None:
    trajectory = await play(EvenWorld({}), ScriptedEngine("abc", "four"))
    again = read_trajectory([bytes(frame) for frame in trajectory_frames(trajectory)])
    assert again.header == trajectory.header
    assert again.prompt_ids.tolist() == trajectory.prompt_ids.tolist()
    assert again.logprobs.tolist() == trajectory.logprobs.tolist()


async def test_each_step_asks_with_its_place_and_its_own_seed() -> None:
    engine = ScriptedEngine("a", "b")
    await play(EvenWorld({}), engine)
    assert [request.order for request in engine.requests] == [(2, 1, 0), (2, 1, 1)]
    assert [request.seed for request in engine.requests] == [derive_seed(77, Purpose.SAMPLING, step) for step in (0, 1)]
    assert {request.max_tokens for request in engine.requests} == {8}


async def test_an_episode_without_end_is_truncated_at_max_steps() -> None:
    trajectory = await play(EvenWorld({"steps": 99}), ScriptedEngine(*"abcdefg"))
    assert len(trajectory.header.turns) == RULES.max_steps
    assert trajectory.header.truncated


async def test_the_longest_prompt_that_fits_is_sent() -> None:
    rules = dataclasses.replace(RULES, max_prompt_tokens=20)
    trajectory = await play(EvenWorld({}), ScriptedEngine("a", "b"), rules)
    assert [turn.num_prompt_tokens for turn in trajectory.header.turns] == [13, 13]
    assert [turn.history_dropped for turn in trajectory.header.turns] == [1, 1]
    assert not any(turn.prompt_cut for turn in trajectory.header.turns)


async def test_a_prompt_that_never_fits_loses_its_middle() -> None:
    rules = dataclasses.replace(RULES, max_prompt_tokens=9)
    trajectory = await play(EvenWorld({"steps": 1}), ScriptedEngine("a"), rules)
    assert tiny_tokenizer().decode(trajectory.prompt_ids) == "tasktep 0"
    assert [turn.prompt_cut for turn in trajectory.header.turns] == [True]


async def test_a_world_that_breaks_fails_the_lease_and_is_closed() -> None:
    def break_down() -> None:
        raise EnvError("the shop burned down")

    world = HookedWorld(break_down)
    failed = await fail(world, ScriptedEngine("a"))
    assert failed.kind is FailureKind.ENVIRONMENT_ERROR
    assert "step 0: the shop burned down" in failed.detail
    assert world.envs[0].inner.is_closed


async def test_a_step_that_takes_too_long_fails_the_lease() -> None:
    world = HookedWorld(lambda: asyncio.sleep(30))
    failed = await fail(world, ScriptedEngine("a"), dataclasses.replace(RULES, step_timeout_s=0.02))
    assert failed.kind is FailureKind.ENVIRONMENT_TIMEOUT
    assert "env.step_timeout_s=0.02" in failed.detail
    assert world.envs[0].inner.is_closed


async def test_an_engine_that_fails_fails_the_lease() -> None:
    failed = await fail(EvenWorld({}), ScriptedEngine("only one"))
    assert (failed.kind, failed.detail) == (FailureKind.ENGINE_ERROR, "out of texts")


@pytest.mark.parametrize("bug", [ZeroDivisionError("bug"), TimeoutError("the environment's own")])
async def test_any_other_exception_is_a_bug_and_passes(bug: Exception) -> None:
    def stumble() -> None:
        raise bug

    world = HookedWorld(stumble)
    with pytest.raises(type(bug)):
        await make_player(world, ScriptedEngine("a")).play(LEASE)
    assert world.envs[0].inner.is_closed


async def test_a_cancelled_episode_closes_its_environment() -> None:
    world = HookedWorld(lambda: asyncio.sleep(30))
    task = asyncio.ensure_future(make_player(world, ScriptedEngine("a")).play(LEASE))
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.envs[0].inner.is_closed


async def test_injected_latency_is_waited_around_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    sleep = asyncio.sleep

    async def recorded(delay: float) -> None:
        waits.append(delay)
        await sleep(0)

    monkeypatch.setattr("actors.episode.asyncio.sleep", recorded)
    latency = parse_latency("lognormal:0.15,1.0")
    await play(EvenWorld({}), ScriptedEngine("a", "b"), dataclasses.replace(RULES, latency=latency))
    assert waits == [draw_latency_s(latency, LEASE.seed, step) for step in (0, 1)]


def test_latency_has_the_stated_distribution() -> None:
    draws = np.log([draw_latency_s(parse_latency("lognormal:0.15,1.0"), 5, step) for step in range(3000)])
    assert abs(np.mean(draws) - np.log(0.15)) < 0.06
    assert abs(np.std(draws) - 1.0) < 0.05
    assert draw_latency_s(parse_latency("fixed:0.2"), 1, 1) == 0.2
    assert draw_latency_s(parse_latency("none"), 1, 1) == 0.0


def test_a_chat_template_wraps_the_prompt_and_opens_the_answer() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    codec = PromptCodec(tokenizer)
    assert codec.decode(codec.encode("hi")) == "[hi]>"
    assert PromptCodec(tiny_tokenizer()).encode("hi").tolist() == tiny_tokenizer()("hi").input_ids


def test_decoding_leaves_special_tokens_out() -> None:
    codec = PromptCodec(tiny_tokenizer())
    assert codec.decode(np.array([*codec.encode("a b"), EOS_ID], dtype=np.int32)) == "a b"


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "a", None])
async def test_a_reward_that_is_no_number_ends_the_run(reward: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    step = EvenEnv.step

    async def pay(env: EvenEnv, response: str) -> StepResult:
        return dataclasses.replace(await step(env, response), reward=reward)

    monkeypatch.setattr(EvenEnv, "step", pay)
    with pytest.raises(RunError, match="reward="):
        await play(EvenWorld({}), ScriptedEngine("a", "b"))
