"""The actor role: `python -m actors.main ROLE_FILE`.

    lease loop   free slots --LeaseRequest--> buffer --LeaseGrant--> its version is adopted --> one task an episode
    episodes     prompt -> engine -> environment -> ... -> result --until acknowledged--> buffer
    follower     news of a version -> load and verify in a thread -> the engine uses it from its next batch on

Waits for: leases (the buffer grants them as capacity and the staleness bound allow). Ends with Stop or SIGTERM; any
failure of one of its tasks, or a silent buffer, ends it with that cause.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import structlog
import torch

from actors.adoption import WeightFollower
from actors.client import BufferClient, Timing
from actors.engines.embedded import EmbeddedEngine, stop_token_ids
from actors.episode import Player, PlayRules
from actors.prompts import PromptCodec
from async_agent_rl.env import World
from async_agent_rl.model_files import load_model, load_tokenizer, resolve_model_path
from async_agent_rl.plugins import load_world
from async_agent_rl.protocol import ActorStats, Lease, LeaseFailed
from async_agent_rl.role_main import leave, run_role
from async_agent_rl.roles import RoleSpec
from async_agent_rl.weights import WeightStore

log = structlog.get_logger()
_STOP_POLL_S = 0.1
_END_S = 1.5
"""How long cancelled tasks may take to finish."""


class Actor:
    """One actor's life in one event loop."""

    def __init__(self, spec: RoleSpec, world: World, model: Any, tokenizer: Any, timing: Timing | None = None) -> None:
        """Create inside the event loop; the model belongs to the actor from now on."""
        self._spec = spec
        self._world = world
        self._codec = PromptCodec(tokenizer)
        config = spec.config
        self._engine = EmbeddedEngine(
            model,
            stop_token_ids(model, tokenizer),
            max_batch=config.actors.max_batch,
            threads=config.actors.threads or torch.get_num_threads(),
            deterministic=config.run.deterministic,
        )
        self._client = BufferClient(spec, self._stats, timing)
        store = WeightStore(Path(spec.run_dir) / "weights", keep=1)
        self._follower = WeightFollower(store, self._engine)
        self._client.on_version = self._follower.hear
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._live = 0
        self._room = asyncio.Event()
        self._episodes = 0
        self._wins = 0

    async def run(self, stop: threading.Event) -> None:
        """Until Stop, or the event.

        Raises:
            RunError: the buffer is gone or refuses; weights are missing, damaged or of another model.
            Exception: any bug of an environment or of ours, from whichever task met it first.
        """
        try:
            welcome = await self._client.connect()
            player = Player(
                self._world,
                self._engine,
                self._codec,
                PlayRules.from_config(self._spec.config, self._spec.config.train.temperature),
                split="train",
                actor=self._spec.name,
                incarnation=welcome.incarnation,
            )
            for work in (self._client.run(), self._follower.run(), self._lease_loop(player)):
                self._spawn(work)
            stopped = self._spawn(self._wait_for_stop(stop))
            await asyncio.wait([stopped, self._failed], return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                self._failed.result()
        finally:
            await self._end()

    async def _lease_loop(self, player: Player) -> None:
        """Ask for as many leases as there are free slots, one request at a time; start what is granted."""
        deterministic = self._spec.config.run.deterministic
        while True:
            capacity, minimum = await self._wait_for_room(deterministic)
            await self._client.request_leases(capacity, minimum)
            grant = await self._client.grants.get()
            await self._follower.reach(grant.version)
            log.info("leases_granted", num=len(grant.leases), version=grant.version, live=self._live)
            self._set_live(self._live + len(grant.leases))
            for lease in grant.leases:
                self._spawn(self._play(player, lease))

    async def _wait_for_room(self, deterministic: bool) -> tuple[int, int]:
        """Capacity and minimum of the next request. Deterministic runs play whole updates, never parts of two."""
        config = self._spec.config
        while True:
            self._room.clear()
            if not deterministic and self._live < config.actors.slots:
                return config.actors.slots - self._live, 1
            if deterministic and self._live == 0:
                return config.trajectories_per_update, config.trajectories_per_update
            await self._room.wait()  # episodes end: each of their waits has a deadline

    async def _play(self, player: Player, lease: Lease) -> None:
        result = await player.play(lease)
        self._set_live(self._live - 1)
        if isinstance(result, LeaseFailed):
            log.warning(
                "episode_failed", group=lease.group, member=lease.member, kind=result.kind, detail=result.detail
            )
        else:
            self._episodes += 1
            self._wins += int(result.header.won)
            log.debug(
                "episode_done",
                group=lease.group,
                member=lease.member,
                steps=len(result.header.turns),
                won=result.header.won,
                version=result.oldest_version,
            )
        await self._client.report(result)

    def _set_live(self, num: int) -> None:
        self._live = num
        self._engine.set_live(num)
        self._room.set()

    def _stats(self) -> ActorStats:
        counters = self._engine.counters
        return ActorStats(
            rows=counters.rows,
            prompt_tokens=counters.prompt_tokens,
            generated_tokens=counters.generated_tokens,
            episodes=self._episodes,
            wins=self._wins,
            busy_s=counters.busy_s,
            lease_wait_s=counters.lease_wait_s,
            env_wait_s=counters.env_wait_s,
            adoptions=counters.adoptions,
            in_flight=self._live,
            version=self._engine.version,
        )

    # --- tasks -------------------------------------------------------------------------------------------------

    async def _wait_for_stop(self, stop: threading.Event) -> None:
        while not stop.is_set() and not self._client.stop_reason.done():
            await asyncio.wait([self._client.stop_reason], timeout=_STOP_POLL_S)
        reason = self._client.stop_reason.result() if self._client.stop_reason.done() else "SIGTERM"
        log.info("stopping", reason=reason, live=self._live, unacknowledged=self._client.num_unacknowledged)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failed.done():
            self._failed.set_exception(_first_cause(error))

    async def _end(self) -> None:
        """Cancel everything, environments included, and let go of the engine and the sockets."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        try:
            await self._engine.close()
            if tasks:
                _, stuck = await asyncio.wait(tasks, timeout=_END_S)
                if stuck:
                    log.warning("tasks_stuck", num=len(stuck))
        finally:
            self._client.close()  # a context left open would hang the process at its exit
        if self._failed.done():
            self._failed.exception()  # raised by `run`, or outrun by Stop


def _first_cause(error: BaseException) -> BaseException:
    """The error a group of tasks failed with first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def main(argv: Sequence[str] | None = None) -> int:
    return run_role(sys.argv[1:] if argv is None else argv, _body)


def _body(spec: RoleSpec, stop: threading.Event) -> None:
    config = spec.config
    if config.actors.threads:
        torch.set_num_threads(config.actors.threads)
    path = resolve_model_path(config.model.path)
    tokenizer = load_tokenizer(path)
    model = load_model(path, config.model.dtype)
    world = load_world(config.env)

    async def live() -> None:
        await Actor(spec, world, model, tokenizer).run(stop)

    asyncio.run(live())


if __name__ == "__main__":
    leave(main())
