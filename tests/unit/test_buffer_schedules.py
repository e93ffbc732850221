"""Any schedule of messages, deaths and delays ends with every group trained once within the bound."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from async_agent_rl import protocol
from async_agent_rl.config import (
    BufferSection,
)
from async_agent_rl.errors import DropReason, FailureKind
from async_agent_rl.protocol import Frame, Lease
from tests.broker_harness import Wire, trajectory_of


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


class RandomRun:
    """Actors and a learner that follow the protocol over a bad network: late, twice, out of order, dying."""

    def __init__(self, rng: random.Random, order: str, max_staleness: int, group_size: int) -> None:
        self.rng = rng
        self.S, self.G, self.B = max_staleness, group_size, 2
        section = BufferSection(order="ready" if order == "ready" else "lease")
        self.wire = Wire(
            per_update=2,
            group_size=group_size,
            max_staleness=max_staleness,
            updates=6,
            deadline_s=60.0,
            max_failures=2,
            buffer=section,
        )
        self.actors = ["actor-0", "actor-1"]
        for actor in self.actors:
            self.wire.hello(actor)
        self.playing: list[tuple[str, Lease, int]] = []
        self.sent: list[tuple[str, list[Frame]]] = []
        self.version = 0
        self.trained: Counter[int] = Counter()

    def run(self, max_events: int = 4000) -> None:
        for _ in range(max_events):
            if self.version == 6:
                return
            self.rng.choices(
                [self.actor_asks, self.actor_finishes, self.actor_repeats, self.actor_fails, self.time_passes],
                [4, 8, 1, 0.4, 0.5],
            )[0]()
            self.learner_acts()
        raise AssertionError(f"stuck at version {self.version}: {self.wire.broker.table.tally}")

    def actor_asks(self) -> None:
        self.wire.say(self.rng.choice(self.actors), protocol.LeaseRequest(capacity=self.rng.randint(1, 8)))
        for actor in self.actors:
            for grant in self.wire.take(actor, protocol.LeaseGrant):
                self.playing += [(actor, lease, grant.version) for lease in grant.leases]

    def actor_finishes(self) -> None:
        if self.playing:
            actor, lease, granted_at = self.playing.pop(self.rng.randrange(len(self.playing)))
            frames = trajectory_of(lease, actor, self.rng.randint(granted_at, self.version))
            if self.rng.random() < 0.05:
                frames = frames[:-1]
            self.sent.append((actor, frames))
            self.wire.put(actor, frames)

    def actor_repeats(self) -> None:
        if self.sent:
            self.wire.put(*self.rng.choice(self.sent))

    def actor_fails(self) -> None:
        if self.rng.random() < 0.2:
            actor = self.rng.choice(self.actors)  # dies and comes back, or is cut off for a while
            self.wire.hello(actor)
        elif self.playing:
            actor, lease, _ = self.playing.pop(self.rng.randrange(len(self.playing)))
            self.wire.say(
                actor,
                protocol.LeaseFailed(lease_id=lease.lease_id, kind=FailureKind.ENVIRONMENT_ERROR, detail=""),
            )

    def time_passes(self) -> None:
        self.wire.tick(self.rng.uniform(0.0, 8.0))

    def learner_acts(self) -> None:
        if self.rng.random() < 0.3:
            self.wire.say("learner", protocol.BatchRequest(version=self.version, num_groups=2))
        delivered = [frames for to, frames in self.wire.sent if to == "learner" and len(frames) > 1]
        self.wire.take("learner", protocol.Batch)
        for frames in delivered:
            batch = protocol.decode(frames[0])
            assert isinstance(batch, protocol.Batch)
            if batch.version == self.version:
                self.learn(batch, frames[1:])

    def learn(self, batch: protocol.Batch, frames: list[Frame]) -> None:
        step = protocol.FRAMES_PER_TRAJECTORY
        trajectories = [protocol.read_trajectory(frames[i : i + step]) for i in range(0, len(frames), step)]
        places = [(trajectory.header.group, trajectory.header.member) for trajectory in trajectories]
        assert places == [(group, member) for group in batch.groups for member in range(self.G)]
        for start in range(0, len(trajectories), self.G):
            assert protocol.staleness(self.version, trajectories[start : start + self.G]) <= self.S
        if self.rng.random() < 0.1:
            self.wire.say("learner", protocol.Dropped(groups=batch.groups, reason=DropReason.NON_FINITE_UPDATE))
            return
        self.trained.update(batch.groups)
        self.version += 1
        self.wire.trained(self.version, batch.groups)


@pytest.mark.parametrize("order", ["lease", "ready"])
@given(seed=st.integers(0, 2**32), max_staleness=st.integers(0, 2), group_size=st.sampled_from([1, 2, 3]))
@settings(max_examples=25, deadline=None)
def test_any_run_ends_with_every_group_trained_once_within_the_bound(
    order: str, seed: int, max_staleness: int, group_size: int
) -> None:
    run = RandomRun(random.Random(seed), order, max_staleness, group_size)
    run.run()
    tally = run.wire.broker.table.tally
    assert set(run.trained.values()) == {1}
    assert sum(run.trained.values()) == tally.groups_trained == 12
    if order == "lease":
        assert tally.groups_dropped[DropReason.TOO_STALE] == 0
