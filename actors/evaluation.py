"""Scoring a model on a fixed panel: the first n tasks of a split, each played once, with the engine and the episode
code of training.

Knows nothing of learners, buffers or what is done with the report.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence

import torch

from actors.engines.embedded import EmbeddedEngine, stop_token_ids
from actors.episode import Player, PlayRules
from actors.prompts import PromptCodec
from async_agent_rl import seeds
from async_agent_rl.config import Config
from async_agent_rl.env import Split, World
from async_agent_rl.errors import InputError, RunError
from async_agent_rl.model_files import load_model, load_tokenizer, resolve_model_path
from async_agent_rl.plugins import load_world
from async_agent_rl.policy import Engine
from async_agent_rl.protocol import Lease, LeaseFailed, TrajectoryDone
from async_agent_rl.reports import EvaluationReport, wilson_interval
from async_agent_rl.seeds import Purpose

Progress = Callable[[int, int], None]
"""Called with (episodes finished, episodes in all)."""
_CONCURRENT = 128
_MAX_KINDS = 12
_KIND = re.compile(r"\s*([A-Za-z][\w -]{0,19}?)\s*(\[|$)")


def run_evaluation(
    model_path: str,
    config: Config,
    split: Split,
    n: int,
    temperature: float,
    seed: int,
    threads: int,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Load a model folder and a world, and score the one on the other.

    Args:
        model_path: a Hugging Face causal-LM folder.
        config: its `env` and `model` sections are used; injected latency is not.
        split: the panel.
        n: tasks 0..n-1 of it.
        temperature: 0 = greedy.
        seed: of the sampling noise; task i always draws the same numbers.
        threads: torch threads; 0 = all cores.
        progress: told of every finished episode.

    Raises:
        InputError: no such model, or fewer than n tasks.
        RunError: an episode was lost to an environment or engine failure, so there is no score.
    """
    path = resolve_model_path(model_path)
    world = load_world(config.env)
    check_panel(world, split, n)
    if threads:
        torch.set_num_threads(threads)
    tokenizer = load_tokenizer(path)
    model = load_model(path, config.model.dtype)
    rules = PlayRules.from_config(config, temperature, with_latency=False)
    started_s = time.monotonic()

    async def play() -> list[TrajectoryDone]:
        engine = EmbeddedEngine(
            model,
            stop_token_ids(model, tokenizer),
            max_batch=config.actors.max_batch,
            threads=threads or torch.get_num_threads(),
            version=0,
        )
        try:
            return await play_panel(world, engine, PromptCodec(tokenizer), rules, split, n, seed, progress)
        finally:
            await engine.close()

    episodes = asyncio.run(play())
    return summarize(episodes, model_path, split, temperature, seed, time.monotonic() - started_s)


def check_panel(world: World, split: Split, n: int) -> None:
    """Raises InputError when the split has fewer than n tasks, or n is below 1."""
    available = world.num_tasks(split)
    if not 1 <= n <= available:
        raise InputError(f"n={n}: the {split} panel has {available} tasks, so n must be between 1 and {available}")


async def play_panel(
    world: World,
    engine: Engine,
    codec: PromptCodec,
    rules: PlayRules,
    split: Split,
    n: int,
    seed: int,
    progress: Progress | None = None,
) -> list[TrajectoryDone]:
    """Play tasks 0..n-1 once each, some of them at the same time.

    Returns:
        [n] headers by task index.

    Raises:
        RunError: an episode was lost.
    """
    player = Player(world, engine, codec, rules, split=split, actor="evaluation", incarnation=0)
    waiting = iter(range(n))
    episodes: dict[int, TrajectoryDone] = {}

    async def work() -> None:
        for index in waiting:
            lease_seed = seeds.derive_seed(seed, Purpose.EVALUATION, index)
            lease = Lease(lease_id=index, group=index, member=0, attempt=0, task_index=index, seed=lease_seed)
            result = await player.play(lease)
            if isinstance(result, LeaseFailed):
                raise RunError(f"{split} task {index} could not be played ({result.kind}): {result.detail}")
            episodes[index] = result.header
            if progress is not None:
                progress(len(episodes), n)

    tasks = [asyncio.create_task(work()) for _ in range(min(n, _CONCURRENT))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [episodes[index] for index in range(n)]


def summarize(
    episodes: Sequence[TrajectoryDone], model: str, split: Split, temperature: float, seed: int, seconds: float
) -> EvaluationReport:
    """Shares and means of a panel.

    Args:
        episodes: [n] by task index, n at least 1.
        model: name for the report.
        seconds: how long playing took.
    """
    n = len(episodes)
    turns = [turn for episode in episodes for turn in episode.turns]
    wins = [episode.won for episode in episodes]
    low, high = wilson_interval(sum(wins), n)
    return EvaluationReport(
        model=model,
        split=split,
        n=n,
        temperature=temperature,
        seed=seed,
        success=sum(wins) / n,
        success_low=low,
        success_high=high,
        score=sum(episode.score for episode in episodes) / n,
        episode_length=len(turns) / n,
        format_ok=sum(turn.format_ok for turn in turns) / len(turns),
        admissible=sum(turn.is_admissible for turn in turns) / len(turns),
        actions=count_actions([turn.action for turn in turns]),
        wins=wins,
        seconds=seconds,
    )


def count_actions(actions: Sequence[str]) -> dict[str, int]:
    """Kind -> count, most frequent first; what is no action or beyond the first kinds is counted as "other"."""
    kinds = Counter(action_kind(action) for action in actions)
    other = kinds.pop("other", 0)
    named = kinds.most_common(_MAX_KINDS)
    other += sum(kinds.values()) - sum(count for _, count in named)
    return dict(named) | ({"other": other} if other else {})


def action_kind(action: str) -> str:
    """The word before `[`, or a short action without one as it is; else "other"."""
    match = _KIND.match(action)
    return match.group(1) if match else "other"
