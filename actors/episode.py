"""Playing one lease: reset, then prompt, answer, step, until the environment is done or the steps are used up.

Waits for: the environment (each call has a deadline) and the engine. A world or an engine that breaks ends the lease
as failed, never with a reward; any other exception is a bug and ends the process. Knows nothing of sockets, groups or
training.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Awaitable
from typing import TypeVar

import numpy as np
import structlog

from actors.latency import draw_latency_s
from actors.prompts import FittedPrompt, PromptCodec
from async_agent_rl import seeds
from async_agent_rl.config import Config, Latency, parse_latency
from async_agent_rl.env import Env, Observation, Split, StepResult, Task, World
from async_agent_rl.errors import EngineError, EnvError, FailureKind, RunError
from async_agent_rl.policy import Completion, Engine, GenerationRequest
from async_agent_rl.protocol import Lease, LeaseFailed, Trajectory, TrajectoryDone, TurnInfo
from async_agent_rl.seeds import Purpose

log = structlog.get_logger()
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlayRules:
    """What bounds an episode."""

    max_steps: int
    max_prompt_tokens: int
    max_response_tokens: int
    temperature: float
    step_timeout_s: float
    latency: Latency

    @classmethod
    def from_config(cls, config: Config, temperature: float, *, with_latency: bool = True) -> PlayRules:
        return cls(
            max_steps=config.env.max_steps,
            max_prompt_tokens=config.model.max_prompt_tokens,
            max_response_tokens=config.model.max_response_tokens,
            temperature=temperature,
            step_timeout_s=config.env.step_timeout_s,
            latency=parse_latency(config.env.latency) if with_latency else Latency("none"),
        )


@dataclasses.dataclass(frozen=True)
class Played:
    """One environment step as it happened."""

    prompt: FittedPrompt
    answer: Completion
    before: Observation
    result: StepResult


class _LeaseLostError(Exception):
    """The lease cannot be played to its end."""

    def __init__(self, kind: FailureKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


class Player:
    """Plays leases with one world and one engine; any number at once."""

    def __init__(
        self,
        world: World,
        engine: Engine,
        codec: PromptCodec,
        rules: PlayRules,
        *,
        split: Split,
        actor: str,
        incarnation: int,
    ) -> None:
        """
        Args:
            split: the tasks that leases count in.
            actor: name written into every trajectory.
            incarnation: of the run, written into every trajectory.
        """
        self._world = world
        self._engine = engine
        self._codec = codec
        self._rules = rules
        self._split = split
        self._actor = actor
        self._incarnation = incarnation

    async def play(self, lease: Lease) -> Trajectory | LeaseFailed:
        """One whole episode. What it draws depends on the lease's seed alone, so a second attempt replays the first
        as long as the weights are the same."""
        started_s = time.time()
        try:
            turns = await self._play(lease)
        except _LeaseLostError as lost:
            return LeaseFailed(lease_id=lease.lease_id, kind=lost.kind, detail=lost.detail)
        return self._record(lease, turns, started_s)

    async def _play(self, lease: Lease) -> list[Played]:
        task = Task(
            split=self._split,
            index=lease.task_index,
            seed=seeds.derive_seed(lease.seed, Purpose.ENVIRONMENT),
        )
        env = self._world.new_env()
        try:
            turns: list[Played] = []
            before = await self._call_env(env.reset(task), "reset")
            for step in range(self._rules.max_steps):
                turns.append(await self._step(env, lease, step, before))
                before = turns[-1].result.observation
                if turns[-1].result.done:
                    break
            return turns
        finally:
            await self._close(env, lease)

    async def _step(self, env: Env, lease: Lease, step: int, before: Observation) -> Played:
        prompt = self._codec.fit(before.prompts, self._rules.max_prompt_tokens)
        if prompt.is_cut:
            log.warning("prompt_cut", group=lease.group, member=lease.member, step=step, task=lease.task_index)
        request = GenerationRequest(
            prompt_ids=prompt.ids,
            order=(lease.group, lease.member, step),
            seed=seeds.derive_seed(lease.seed, Purpose.SAMPLING, step),
            temperature=self._rules.temperature,
            max_tokens=self._rules.max_response_tokens,
        )
        try:
            answer = await self._engine.generate(request)
        except EngineError as error:
            raise _LeaseLostError(FailureKind.ENGINE_ERROR, str(error)) from error
        delay_s = draw_latency_s(self._rules.latency, lease.seed, step)
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        result = await self._call_env(env.step(self._codec.decode(answer.token_ids)), f"step {step}")
        _check_numbers(result, step, lease)
        return Played(prompt, answer, before, result)

    async def _call_env(self, call: Awaitable[_T], what: str) -> _T:
        deadline = asyncio.timeout(self._rules.step_timeout_s)
        try:
            async with deadline:
                return await call
        except TimeoutError as error:
            if not deadline.expired():
                raise  # the environment's own, so a bug of it
            detail = f"{what} of the environment took more than env.step_timeout_s={self._rules.step_timeout_s:g} s"
            raise _LeaseLostError(FailureKind.ENVIRONMENT_TIMEOUT, detail) from error
        except EnvError as error:
            raise _LeaseLostError(FailureKind.ENVIRONMENT_ERROR, f"{what}: {error}") from error

    async def _close(self, env: Env, lease: Lease) -> None:
        try:
            await self._call_env(env.close(), "close")
        except _LeaseLostError as lost:  # the episode itself is over, and what it earned stands
            log.warning("env_not_closed", group=lease.group, member=lease.member, error=lost.detail)

    def _record(self, lease: Lease, turns: list[Played], started_s: float) -> Trajectory:
        last = turns[-1].result
        header = TrajectoryDone(
            lease_id=lease.lease_id,
            group=lease.group,
            member=lease.member,
            attempt=lease.attempt,
            task_index=lease.task_index,
            actor=self._actor,
            incarnation=self._incarnation,
            kv_policy=self._engine.kv_policy,
            world_id=getattr(self._world, "world_id", ""),
            turns=[_turn_info(turn) for turn in turns],
            won=last.won,
            score=last.score,
            truncated=not last.done,
            started_s=started_s,
            finished_s=time.time(),
        )
        return Trajectory(
            header=header,
            prompt_ids=np.concatenate([turn.prompt.ids for turn in turns]),
            action_ids=np.concatenate([turn.answer.token_ids for turn in turns]),
            logprobs=np.concatenate([turn.answer.logprobs for turn in turns]),
            versions=np.concatenate([turn.answer.versions for turn in turns]),
        )


def _turn_info(turn: Played) -> TurnInfo:
    return TurnInfo(
        num_prompt_tokens=len(turn.prompt.ids),
        num_action_tokens=len(turn.answer.token_ids),
        reward=turn.result.reward,
        state_key=turn.before.state_key,
        observation_key=turn.before.text,
        action=turn.result.action,
        format_ok=turn.result.format_ok,
        is_admissible=turn.result.is_admissible,
        response_cut=turn.answer.finish == "length",
        history_dropped=turn.prompt.choice,
        prompt_cut=turn.prompt.is_cut,
    )


def _check_numbers(result: StepResult, step: int, lease: Lease) -> None:
    """A reward that is no number would fail every try of the task for ever, so it ends the run instead.

    Raises:
        RunError: names the value and the step.
    """
    for name, value in (("reward", result.reward), ("score", result.score)):
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise RunError(
                f"the environment returned {name}={value!r} in step {step} of task {lease.task_index}: "
                f"it must be a finite number"
            )
