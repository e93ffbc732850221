"""The third, plain training loop: play, train, repeat, in one function and one thread of control.

No sockets, no buffer, no launcher, no queue, no tasks of ours: what a run with `run.deterministic=true` must reproduce
bit for bit. It shares with the pipeline only what is not under test there: engine, prompt codec, rows and update.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import numpy as np
import torch

from actors.engines.embedded import EmbeddedEngine, stop_token_ids
from actors.prompts import PromptCodec
from async_agent_rl.buffer.groups import task_index
from async_agent_rl.config import Config
from async_agent_rl.env import Env, Observation, Task, World
from async_agent_rl.model_files import load_model, load_tokenizer, resolve_model_path
from async_agent_rl.policy import Completion, GenerationRequest, IntArray
from async_agent_rl.protocol import Trajectory, TrajectoryDone, TurnInfo
from async_agent_rl.seeds import Purpose, derive_seed
from learner.batch import build_rows
from learner.update import PolicyUpdater, UpdateStats


@dataclasses.dataclass
class PlainResult:
    """What the loop ends with."""

    model: Any
    """Trained transformers model."""
    stats: list[UpdateStats]
    trajectories: list[list[Trajectory]]
    """Per update."""


@dataclasses.dataclass
class _Episode:
    group: int
    member: int
    task: int
    seed: int
    env: Env
    observation: Observation
    done: bool = False
    won: bool = False
    score: float = 0.0
    prompts: list[IntArray] = dataclasses.field(default_factory=list)
    answers: list[Completion] = dataclasses.field(default_factory=list)
    turns: list[TurnInfo] = dataclasses.field(default_factory=list)


def train_plainly(config: Config, world: World) -> PlainResult:
    """All updates of a run, with one torch thread. The seeds and the order of everything are those of the pipeline."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        return asyncio.run(_train(config, world))
    finally:
        torch.use_deterministic_algorithms(False)


async def _train(config: Config, world: World) -> PlainResult:
    path = resolve_model_path(config.model.path)
    tokenizer = load_tokenizer(path)
    codec = PromptCodec(tokenizer)
    trained, sampled = (load_model(path, config.model.dtype) for _ in range(2))
    updater = PolicyUpdater(trained, config)
    engine = EmbeddedEngine(
        sampled, stop_token_ids(sampled, tokenizer), max_batch=config.actors.max_batch, threads=1, deterministic=True
    )
    result = PlainResult(trained, [], [])
    for version in range(config.train.updates):
        engine.adopt(version, {name: value.clone() for name, value in trained.state_dict().items()})
        trajectories = await _play(config, world, engine, codec, version)
        rows = build_rows(trajectories, config.learner.penalize, config.gigpo.anchor, config.offpolicy.correction)
        stats = updater.update(rows, version).stats
        assert stats is not None, f"update {version} was not applied"
        result.stats.append(stats)
        result.trajectories.append(trajectories)
    await engine.close()
    return result


async def _play(
    config: Config, world: World, engine: EmbeddedEngine, codec: PromptCodec, version: int
) -> list[Trajectory]:
    """B x G episodes in lock-step: all of them ask, all of them step, until none is left."""
    episodes = [
        await _begin(config, world, group, member)
        for group in range(version * config.train.groups_per_update, (version + 1) * config.train.groups_per_update)
        for member in range(config.group.size)
    ]
    for step in range(config.env.max_steps):
        live = [episode for episode in episodes if not episode.done]
        if not live:
            break
        engine.set_live(len(live))
        requests = [_ask(config, codec, episode, step) for episode in live]
        answers = await asyncio.gather(*(engine.generate(request) for request in requests))
        for episode, request, answer in zip(live, requests, answers, strict=True):
            await _step(codec, episode, request, answer)
    for episode in episodes:
        await episode.env.close()
    return [_record(engine, episode) for episode in episodes]


async def _begin(config: Config, world: World, group: int, member: int) -> _Episode:
    seed = derive_seed(config.run.seed, Purpose.ENVIRONMENT, group, member)
    index = task_index(config.run.seed, group, world.num_tasks("train"))
    env = world.new_env()
    observation = await env.reset(Task(split="train", index=index, seed=derive_seed(seed, Purpose.ENVIRONMENT)))
    return _Episode(group, member, index, seed, env, observation)


def _ask(config: Config, codec: PromptCodec, episode: _Episode, step: int) -> GenerationRequest:
    return GenerationRequest(
        prompt_ids=codec.fit(episode.observation.prompts, config.model.max_prompt_tokens).ids,
        order=(episode.group, episode.member, step),
        seed=derive_seed(episode.seed, Purpose.SAMPLING, step),
        temperature=config.train.temperature,
        max_tokens=config.model.max_response_tokens,
    )


async def _step(codec: PromptCodec, episode: _Episode, request: GenerationRequest, answer: Completion) -> None:
    before = episode.observation
    result = await episode.env.step(codec.decode(answer.token_ids))
    episode.prompts.append(request.prompt_ids)
    episode.answers.append(answer)
    episode.turns.append(
        TurnInfo(
            num_prompt_tokens=len(request.prompt_ids),
            num_action_tokens=len(answer.token_ids),
            reward=result.reward,
            state_key=before.state_key,
            observation_key=before.text,
            action=result.action,
            format_ok=result.format_ok,
            is_admissible=result.is_admissible,
        )
    )
    episode.observation = result.observation
    episode.done, episode.won, episode.score = result.done, result.won, result.score


def _record(engine: EmbeddedEngine, episode: _Episode) -> Trajectory:
    header = TrajectoryDone(
        lease_id=episode.group * 1_000_000 + episode.member,
        group=episode.group,
        member=episode.member,
        attempt=0,
        task_index=episode.task,
        actor="plain-loop",
        incarnation=0,
        kv_policy=engine.kv_policy,
        turns=episode.turns,
        won=episode.won,
        score=episode.score,
        truncated=not episode.done,
        started_s=0.0,
        finished_s=0.0,
    )
    return Trajectory(
        header=header,
        prompt_ids=np.concatenate(episode.prompts),
        action_ids=np.concatenate([answer.token_ids for answer in episode.answers]),
        logprobs=np.concatenate([answer.logprobs for answer in episode.answers]),
        versions=np.concatenate([answer.versions for answer in episode.answers]),
    )
