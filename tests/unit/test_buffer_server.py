"""The buffer as its peers see it: message by message with a clock of the test's own, and over real sockets."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest
import structlog
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from async_agent_rl import protocol
from async_agent_rl.buffer import main as buffer_main
from async_agent_rl.buffer.batching import REDELIVERY_S, WAIT_REPORT_S
from async_agent_rl.buffer.broker import ACTOR_SILENCE_S, MAX_PEERS, Broker, Outgoing
from async_agent_rl.buffer.server import serve
from async_agent_rl.config import (
    ActorsSection,
    BufferSection,
    Config,
    GroupSection,
    StalenessSection,
    TrainSection,
)
from async_agent_rl.errors import DropReason, FailureKind, InputError, RunError
from async_agent_rl.protocol import AnyMessage, Frame, Lease
from async_agent_rl.roles import RoleSpec
from async_agent_rl.transport.memory import MemoryMailbox
from async_agent_rl.transport.sockets import make_dealer, make_subscriber

M = TypeVar("M", bound=protocol.Message)


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


def new_spec(
    *,
    run_dir: str = "/nowhere",
    per_update: int = 2,
    group_size: int = 2,
    max_staleness: int = 1,
    updates: int = 50,
    slots: int = 8,
    max_failures: int = 3,
    deadline_s: float = 1000.0,
    buffer: BufferSection | None = None,
) -> RoleSpec:
    config = Config(
        group=GroupSection(size=group_size, max_failures=max_failures, deadline_s=deadline_s),
        train=TrainSection(groups_per_update=per_update, updates=updates),
        staleness=StalenessSection(max=max_staleness),
        actors=ActorsSection(slots=slots),
        buffer=buffer or BufferSection(),
    )
    return RoleSpec(name="buffer", run_id="run-1", run_dir=run_dir, incarnation=0, config=config, num_train_tasks=7)


def trajectory_of(lease: Lease, actor: str, version: int, **changes: Any) -> list[Frame]:
    """Two turns: 3 + 1 prompt tokens, 2 + 1 action tokens."""
    turns = [
        protocol.TurnInfo(
            num_prompt_tokens=prompts,
            num_action_tokens=actions,
            reward=1.0,
            state_key="s",
            observation_key="o",
            action="x",
            format_ok=True,
            is_admissible=True,
        )
        for prompts, actions in ((3, 2), (1, 1))
    ]
    header = protocol.TrajectoryDone(
        lease_id=lease.lease_id,
        group=lease.group,
        member=lease.member,
        attempt=lease.attempt,
        task_index=lease.task_index,
        actor=actor,
        incarnation=0,
        kv_policy="none",
        turns=turns,
        won=True,
        score=1.0,
        truncated=False,
        started_s=0.0,
        finished_s=1.0,
    )
    arrays = {
        "prompt_ids": np.arange(4, dtype=np.int32),
        "action_ids": np.arange(3, dtype=np.int32),
        "logprobs": np.full(3, -0.5, dtype=np.float32),
        "versions": np.full(3, version, dtype=np.int32),
    }
    arrays |= {name: value for name, value in changes.items() if name in arrays}
    header = msgspec.structs.replace(header, **{k: v for k, v in changes.items() if k not in arrays})
    return [protocol.encode(header), *(array.tobytes() for array in arrays.values())]


class Wire:
    """A broker, a clock, and what it sent to whom."""

    def __init__(self, **spec: Any) -> None:
        self.broker = Broker(new_spec(**spec))
        self.now_s = 0.0
        self.sent: list[tuple[str | None, list[Frame]]] = []
        self.hello("learner")

    def put(self, peer: str, frames: Sequence[Frame]) -> None:
        self._keep(self.broker.handle(peer, frames, self.now_s))

    def say(self, peer: str, message: AnyMessage) -> None:
        self.put(peer, [protocol.encode(message)])

    def tick(self, seconds: float = 0.0, is_drained: bool = True) -> None:
        self.now_s += seconds
        self._keep(self.broker.tick(self.now_s, is_drained))

    def _keep(self, outbox: Sequence[Outgoing]) -> None:
        self.sent += [(outgoing.peer, list(outgoing.frames)) for outgoing in outbox]
        self.broker.table.check_conservation()

    def hello(self, name: str, **changes: Any) -> None:
        role = name.split("-")[0]
        assert role in ("actor", "learner", "launcher")
        hello = protocol.Hello(role="actor", name=name, run_id="run-1")
        self.say(name, msgspec.structs.replace(hello, role=role, **changes))

    def take(self, peer: str | None, kind: type[M]) -> list[M]:
        """Messages of that kind sent to that peer since last asked, oldest first."""
        taken: list[M] = []
        kept = []
        for to, frames in self.sent:
            message = protocol.decode(frames[0])
            if to == peer and isinstance(message, kind):
                taken.append(message)
            else:
                kept.append((to, frames))
        self.sent = kept
        return taken

    def lease(self, actor: str, capacity: int) -> list[Lease]:
        self.say(actor, protocol.LeaseRequest(capacity=capacity))
        return [lease for grant in self.take(actor, protocol.LeaseGrant) for lease in grant.leases]

    def finish(self, actor: str, leases: Sequence[Lease], version: int = 0) -> None:
        for lease in leases:
            self.put(actor, trajectory_of(lease, actor, version))

    def ask(self, version: int, num_groups: int = 2) -> list[int] | None:
        """Groups of the batch that is delivered at once, or None."""
        self.say("learner", protocol.BatchRequest(version=version, num_groups=num_groups))
        batches = self.take("learner", protocol.Batch)
        return batches[-1].groups if batches else None

    def trained(self, version: int, groups: list[int]) -> None:
        self.say("learner", protocol.Trained(version=version, groups=groups))


def test_a_hello_is_welcomed_with_the_version() -> None:
    wire = Wire()
    wire.hello("actor-0")
    assert wire.take("actor-0", protocol.Welcome) == [protocol.Welcome(version=0, incarnation=0)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run_id": "run-2"}, "serves run run-1, not run-2"),
        ({"protocol": 99}, "speaks protocol 1, not 99"),
        ({"name": "actor-1"}, "the name actor-1 differs from the socket's identity actor-0"),
    ],
)
def test_foreigners_are_refused_and_stay_strangers(changes: dict[str, Any], reason: str) -> None:
    wire = Wire()
    hello = msgspec.structs.replace(protocol.Hello(role="actor", name="actor-0", run_id="run-1"), **changes)
    wire.say("actor-0", hello)
    (refused,) = wire.take("actor-0", protocol.Refused)
    assert reason in refused.reason
    assert wire.lease("actor-0", 4) == []
    assert wire.take("actor-0", protocol.Refused)[0].reason == "say Hello first"


def test_the_number_of_peers_is_bounded() -> None:
    wire = Wire()
    for index in range(MAX_PEERS - 1):
        wire.broker.handle(
            f"actor-{index}",
            [protocol.encode(protocol.Hello(role="actor", name=f"actor-{index}", run_id="run-1"))],
            0.0,
        )
    wire.hello("actor-last")
    assert "peers are connected already" in wire.take("actor-last", protocol.Refused)[0].reason


def test_leases_stop_at_the_staleness_bound_and_go_on_when_the_version_moves() -> None:
    wire = Wire(per_update=1, group_size=2, max_staleness=1)
    wire.hello("actor-0")
    leases = wire.lease("actor-0", 8)
    assert [lease.group for lease in leases] == [0, 0, 1, 1]
    assert wire.lease("actor-0", 4) == []  # parked
    wire.finish("actor-0", leases)
    assert wire.ask(0, 1) == [0]
    wire.now_s = 3.0
    wire.trained(1, [0])
    (grant,) = wire.take("actor-0", protocol.LeaseGrant)
    assert ([lease.group for lease in grant.leases], grant.version) == ([2, 2], 1)
    assert wire.take(None, protocol.VersionHint) == [protocol.VersionHint(version=1)]


def test_every_result_is_acknowledged_with_the_version_even_repeated() -> None:
    wire = Wire()
    wire.hello("actor-0")
    lease = wire.lease("actor-0", 1)[0]
    wire.finish("actor-0", [lease, lease])
    assert wire.take("actor-0", protocol.Ack) == [protocol.Ack(lease_id=0, version=0)] * 2
    assert wire.broker.table.tally.duplicates == 1


def test_a_batch_carries_the_received_frames_group_by_group() -> None:
    wire = Wire(max_staleness=0)
    wire.hello("actor-0")
    leases = wire.lease("actor-0", 8)
    wire.finish("actor-0", leases[::-1])
    wire.say("learner", protocol.BatchRequest(version=0, num_groups=2))
    (frames,) = [frames for to, frames in wire.sent if to == "learner" and len(frames) > 1]
    batch = protocol.decode(frames[0])
    assert isinstance(batch, protocol.Batch)
    assert (batch.groups, batch.group_size, batch.version) == ([0, 1], 2, 0)
    assert len(frames) == 1 + 4 * protocol.FRAMES_PER_TRAJECTORY
    assert frames[1:] == [frame for lease in leases for frame in trajectory_of(lease, "actor-0", 0)]


def test_a_batch_waits_for_the_last_member_and_repeats_are_answered_by_a_hint() -> None:
    wire = Wire()
    wire.hello("actor-0")
    leases = wire.lease("actor-0", 8)
    wire.finish("actor-0", leases[:3])
    assert wire.ask(0) is None
    assert wire.take("learner", protocol.VersionHint) == []
    assert wire.ask(0) is None
    assert wire.take("learner", protocol.VersionHint) == [protocol.VersionHint(version=0)]
    wire.finish("actor-0", leases[3:4])
    (batch,) = wire.take("learner", protocol.Batch)
    assert (batch.groups, batch.stats.groups_ready, batch.stats.groups_in_flight) == ([0, 1], 0, 2)


def test_the_same_batch_is_delivered_again_until_it_is_trained() -> None:
    wire = Wire()
    wire.hello("actor-0")
    wire.finish("actor-0", wire.lease("actor-0", 8))
    assert wire.ask(0) == [0, 1]
    wire.now_s = REDELIVERY_S - 0.1
    assert wire.ask(0) is None  # sent before the batch arrived: it is on its way
    assert wire.take("learner", protocol.VersionHint) == [protocol.VersionHint(version=0)]
    wire.now_s = REDELIVERY_S
    assert wire.ask(0) == [0, 1]
    wire.hello("learner")  # a restarted one does not wait
    assert wire.ask(0) == [0, 1]
    lost = Outgoing("learner", [protocol.encode(protocol.VersionHint(version=0))])
    wire._keep(wire.broker.undelivered(lost, wire.now_s))  # the batch behind it may be lost as well
    assert wire.ask(0) == [0, 1]
    wire.trained(1, [0, 1])
    assert wire.ask(1) == [2, 3]
    wire.trained(1, [2, 3])  # a repeat of version 1 trains nothing
    assert wire.broker.table.tally.groups_trained == 2


def test_a_request_that_contradicts_the_run_is_refused() -> None:
    wire = Wire(per_update=2)
    assert wire.ask(0, num_groups=3) is None
    assert "batches have 2 groups" in wire.take("learner", protocol.Refused)[0].reason


def test_groups_the_learner_drops_are_replaced_before_the_update() -> None:
    wire = Wire(max_staleness=0)
    wire.hello("actor-0")
    wire.finish("actor-0", wire.lease("actor-0", 8))
    assert wire.ask(0) == [0, 1]
    wire.say("learner", protocol.Dropped(groups=[0], reason=DropReason.FILTERED))
    assert wire.lease("actor-0", 8) == []  # not before we know that no update consumed its place
    assert wire.ask(0) is None
    (grant,) = wire.take("actor-0", protocol.LeaseGrant)
    assert [lease.group for lease in grant.leases] == [2, 2]
    wire.finish("actor-0", grant.leases)
    assert wire.take("learner", protocol.Batch)[0].groups == [1, 2]
    assert wire.broker.table.tally.groups_dropped == {DropReason.FILTERED: 1}


def test_groups_dropped_while_the_learner_waits_are_replaced_at_once() -> None:
    wire = Wire(max_staleness=0)
    wire.hello("actor-0")
    wire.finish("actor-0", wire.lease("actor-0", 8))
    assert wire.ask(0) == [0, 1]
    wire.say("learner", protocol.Dropped(groups=[0, 5], reason=DropReason.FILTERED))  # 5 was never begun
    assert wire.ask(0) is None
    wire.say("learner", protocol.Dropped(groups=[1], reason=DropReason.FILTERED))
    assert [lease.group for lease in wire.lease("actor-0", 8)] == [2, 2, 3, 3]


def damaged(frames: list[Frame], how: str) -> list[Frame]:
    match how:
        case "frame missing":
            return frames[:-1]
        case "array cut":
            return [*frames[:2], frames[2][:-4], *frames[3:]]
        case "odd bytes":
            return [*frames[:2], bytes(frames[2]) + b"x", *frames[3:]]
    raise AssertionError(how)


@pytest.mark.parametrize("how", ["frame missing", "array cut", "odd bytes"])
def test_a_damaged_trajectory_costs_its_lease_and_is_played_again(how: str) -> None:
    wire = Wire()
    wire.hello("actor-0")
    lease = wire.lease("actor-0", 1)[0]
    wire.put("actor-0", damaged(trajectory_of(lease, "actor-0", 0), how))
    assert wire.take("actor-0", protocol.Ack) == [protocol.Ack(lease_id=0, version=0)]
    assert wire.broker.table.tally.leases_failed == {FailureKind.ENGINE_ERROR: 1}
    again = wire.lease("actor-0", 1)[0]
    assert (again.member, again.attempt, again.seed) == (lease.member, 1, lease.seed)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"logprobs": np.array([-1, np.nan, -1], np.float32)}, "log-prob is not a finite"),
        ({"versions": np.array([0, 0, 2], np.int32)}, "versions span 0..2, newest is 0"),
        ({"versions": np.array([0, -1, 0], np.int32)}, "versions span -1..0"),
        ({"score": float("inf")}, "reward or the score"),
        ({"incarnation": 4}, "belongs to incarnation 4"),
        ({"member": 1}, "claims"),
        ({"task_index": 99}, "claims"),
    ],
)
def test_a_trajectory_that_would_poison_an_update_is_refused(
    changes: dict[str, Any], reason: str, quiet_log: list[Any]
) -> None:
    wire = Wire()
    wire.hello("actor-0")
    lease = wire.lease("actor-0", 1)[0]
    wire.put("actor-0", trajectory_of(lease, "actor-0", 0, **changes))
    assert wire.broker.table.tally.leases_failed == {FailureKind.ENGINE_ERROR: 1}
    (entry,) = [entry for entry in quiet_log if entry["event"] == "lease_failed"]
    assert reason in entry["detail"]


def test_a_turn_without_tokens_is_refused() -> None:
    wire = Wire()
    wire.hello("actor-0")
    lease = wire.lease("actor-0", 1)[0]
    header = protocol.decode(trajectory_of(lease, "actor-0", 0)[0])
    assert isinstance(header, protocol.TrajectoryDone)
    turns = [msgspec.structs.replace(turn, num_action_tokens=0) for turn in header.turns]
    empty = np.zeros(0, np.int32)
    wire.put(
        "actor-0",
        trajectory_of(
            lease, "actor-0", 0, turns=turns, action_ids=empty, logprobs=empty.astype(np.float32), versions=empty
        ),
    )
    assert wire.broker.table.tally.leases_failed == {FailureKind.ENGINE_ERROR: 1}


@pytest.mark.parametrize(
    "frames",
    [[], [b""], [b"\xc1garbage"], [b"\xc1", b"a", b"b", b"c", b"d"], [b"\x81\xa4type\xa5Bogus"]],
)
def test_garbage_is_logged_and_changes_nothing(frames: list[Frame], quiet_log: list[Any]) -> None:
    wire = Wire()
    wire.hello("actor-0")
    wire.sent.clear()
    wire.put("actor-0", frames)
    assert [entry["event"] for entry in quiet_log][-1] == "message_refused"
    assert wire.sent == []
    assert len(wire.lease("actor-0", 2)) == 2


@pytest.mark.parametrize(
    ("peer", "message"),
    [
        ("learner", protocol.LeaseRequest(capacity=1)),
        ("actor-0", protocol.BatchRequest(version=0, num_groups=2)),
        ("actor-0", protocol.Trained(version=1, groups=[])),
        ("actor-0", protocol.Stop(reason="no")),
        ("actor-0", protocol.Ack(lease_id=0, version=0)),
    ],
)
def test_messages_of_another_role_are_refused(peer: str, message: AnyMessage, quiet_log: list[Any]) -> None:
    wire = Wire()
    wire.hello("actor-0")
    wire.say(peer, message)
    assert "is not for a" in quiet_log[-1]["error"]
    assert (wire.broker.version, wire.broker.stop_reason) == (0, None)


def test_a_heartbeat_is_answered_and_its_figures_reach_the_learner() -> None:
    wire = Wire()
    wire.hello("actor-0")
    wire.say("actor-0", protocol.Heartbeat(stats=protocol.ActorStats(rows=41, lease_wait_s=2.5)))
    assert wire.take("actor-0", protocol.VersionHint) == [protocol.VersionHint(version=0)]
    wire.finish("actor-0", wire.lease("actor-0", 8))
    assert wire.lease("actor-0", 8) == []  # blocked by the bound from here
    wire.now_s = 4.0
    wire.say("learner", protocol.BatchRequest(version=0, num_groups=2))
    stats = wire.take("learner", protocol.Batch)[0].stats
    assert stats.actors == {"actor-0": protocol.ActorStats(rows=41, lease_wait_s=2.5)}
    assert (stats.groups_ready, stats.groups_issued, stats.admission_blocked_s) == (2, 4, 4.0)


def test_an_actor_that_falls_silent_loses_its_leases_to_others() -> None:
    wire = Wire()
    wire.hello("actor-0")
    wire.hello("actor-1")
    lost = wire.lease("actor-0", 8)
    assert wire.lease("actor-1", 8) == []
    wire.now_s = 10.0
    wire.say("actor-1", protocol.Heartbeat(stats=protocol.ActorStats()))
    wire.tick(ACTOR_SILENCE_S - 10.0)
    assert wire.take("actor-1", protocol.LeaseGrant) == []
    wire.tick(0.1, is_drained=False)  # its messages may still be unread
    assert wire.take("actor-1", protocol.LeaseGrant) == []
    wire.tick(0.0)
    (grant,) = wire.take("actor-1", protocol.LeaseGrant)
    assert [(lease.group, lease.member, lease.attempt) for lease in grant.leases] == [
        (lease.group, lease.member, 1) for lease in lost
    ]
    wire.finish("actor-0", lost)  # it was only slow: too late, acknowledged, not counted in
    assert len(wire.take("actor-0", protocol.Ack)) == len(lost)
    assert wire.broker.table.tally.late == len(lost)
    wire.finish("actor-1", grant.leases)
    assert wire.ask(0) == [0, 1]


def test_a_restarted_actor_gets_its_work_anew() -> None:
    wire = Wire()
    wire.hello("actor-0")
    before = wire.lease("actor-0", 8)
    wire.hello("actor-0")
    after = wire.lease("actor-0", 8)
    assert [(lease.group, lease.member, lease.attempt) for lease in after] == [
        (lease.group, lease.member, 1) for lease in before
    ]


def test_an_actor_that_was_only_stalled_still_gets_its_answer() -> None:
    wire = Wire()
    wire.hello("actor-0")
    leases = wire.lease("actor-0", 8)
    wire.say("actor-0", protocol.LeaseRequest(capacity=8))  # parked; an actor has one request out at a time
    wire.tick(ACTOR_SILENCE_S + 1.0)
    assert wire.broker.table.tally.leases_failed == {FailureKind.ACTOR_LOST: len(leases)}
    assert wire.take("actor-0", protocol.LeaseGrant) == []  # nothing is leased to who seems gone
    wire.say("actor-0", protocol.Heartbeat(stats=protocol.ActorStats()))
    (grant,) = wire.take("actor-0", protocol.LeaseGrant)
    assert [lease.attempt for lease in grant.leases] == [1] * 8


def test_a_grant_that_could_not_be_sent_is_made_again_when_the_actor_is_back() -> None:
    wire = Wire(slots=3)
    wire.hello("actor-0")
    wire.say("actor-0", protocol.LeaseRequest(capacity=3))
    (grant,) = wire.take("actor-0", protocol.LeaseGrant)
    wire._keep(wire.broker.undelivered(Outgoing("actor-0", [protocol.encode(grant)]), 0.0))
    assert wire.broker.table.tally.leases_failed == {FailureKind.ACTOR_LOST: 3}
    assert wire.take("actor-0", protocol.LeaseGrant) == []
    wire.say("actor-0", protocol.Heartbeat(stats=protocol.ActorStats()))
    assert len(wire.take("actor-0", protocol.LeaseGrant)[0].leases) > 0


def test_a_group_past_its_deadline_is_dropped_and_the_next_takes_its_place() -> None:
    wire = Wire(deadline_s=10.0, per_update=1, max_staleness=0)
    wire.hello("actor-0")
    leases = wire.lease("actor-0", 8)
    wire.finish("actor-0", leases[:1])
    wire.say("actor-0", protocol.LeaseRequest(capacity=8))
    assert wire.broker.seconds_to_deadline(4.0) == 6.0
    wire.tick(10.0)
    (grant,) = wire.take("actor-0", protocol.LeaseGrant)
    assert [lease.group for lease in grant.leases] == [1, 1]
    wire.finish("actor-0", [*leases[1:], *grant.leases])
    assert wire.ask(0, 1) == [1]
    tally = wire.broker.table.tally
    assert (tally.groups_dropped, tally.late) == ({DropReason.DEADLINE: 1}, 1)


def test_over_age_groups_are_dropped_under_ready_order_and_refunded() -> None:
    wire = Wire(per_update=1, group_size=1, max_staleness=1, buffer=BufferSection(order="ready"))
    wire.hello("actor-0")
    slow, quick = wire.lease("actor-0", 2)
    for version in range(2):
        wire.finish("actor-0", [quick], version)
        assert wire.ask(version, 1) == [quick.group]
        wire.trained(version + 1, [quick.group])
        (quick,) = wire.lease("actor-0", 1)
    wire.finish("actor-0", [slow], 0)  # two versions old now, one is allowed
    wire.say("actor-0", protocol.LeaseRequest(capacity=1))
    assert wire.take("actor-0", protocol.LeaseGrant) == []
    assert wire.ask(2, 1) is None
    assert wire.broker.table.tally.groups_dropped == {DropReason.TOO_STALE: 1}
    assert len(wire.take("actor-0", protocol.LeaseGrant)) == 1


def test_a_learner_that_waits_long_makes_the_buffer_say_for_whom(quiet_log: list[Any]) -> None:
    wire = Wire()
    wire.hello("actor-0")
    leases = wire.lease("actor-0", 8)
    wire.finish("actor-0", [leases[0], leases[2], leases[3]])
    assert wire.ask(0) is None
    for _ in range(2):
        wire.say("actor-0", protocol.Heartbeat(stats=protocol.ActorStats()))
        wire.tick(WAIT_REPORT_S / 2)
    wire.tick(1.0)
    (entry,) = [entry for entry in quiet_log if entry["event"] == "learner_waits"]
    assert (entry["group"], entry["members_in"], entry["waited_s"]) == (0, 1, WAIT_REPORT_S)
    assert entry["leased_to"] == ["actor-0"]


def test_stop_reaches_everyone_and_ends_what_lives() -> None:
    wire = Wire()
    wire.hello("actor-0")
    wire.hello("launcher")
    wire.finish("actor-0", wire.lease("actor-0", 3))
    wire.say("launcher", protocol.Stop(reason="done"))
    assert {peer for peer, _ in wire.sent} >= {"actor-0", "learner", None}
    assert wire.take("actor-0", protocol.Stop) == [protocol.Stop(reason="done")]
    assert wire.take(None, protocol.Stop) == [protocol.Stop(reason="done")]
    assert wire.broker.stop_reason == "done"
    assert wire.broker.table.tally.groups_dropped == {DropReason.RUN_ENDED: 2}
    assert wire.broker.stop("again", 0.0) == []


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


class SocketPeer:
    """A blocking role over real sockets."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, name: str) -> None:
        self.name = name
        self.socket = make_dealer(context, address, name)
        self.say(protocol.Hello(role="actor" if "actor" in name else "learner", name=name, run_id="run-1"))
        self.expect(protocol.Welcome)

    def say(self, message: AnyMessage) -> None:
        self.socket.send(protocol.encode(message))

    def frames(self) -> list[bytes]:
        assert self.socket.poll(5000), f"{self.name}: no message came"
        return self.socket.recv_multipart()

    def expect(self, kind: type[M]) -> M:
        message = protocol.decode(self.frames()[0])
        assert isinstance(message, kind), message
        return message

    def play(self, capacity: int, version: int) -> int:
        self.say(protocol.LeaseRequest(capacity=capacity))
        leases = self.expect(protocol.LeaseGrant).leases
        for lease in leases:
            self.socket.send_multipart(trajectory_of(lease, self.name, version))
        for _ in leases:
            self.expect(protocol.Ack)
        return len(leases)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


Running = tuple[buffer_main.BufferAddresses, threading.Thread, threading.Event]


@pytest.fixture
def running_buffer(tmp_path: Path) -> Iterator[Running]:
    """The whole role but its process: it binds, announces itself and serves in a thread."""
    stop = threading.Event()
    thread = threading.Thread(target=buffer_main._body, args=(new_spec(run_dir=str(tmp_path)), stop))
    thread.start()
    addresses = buffer_main.wait_for_addresses(tmp_path, 5.0, thread.is_alive)
    yield addresses, thread, stop
    stop.set()
    thread.join(5.0)
    assert not thread.is_alive()
    assert not buffer_main.address_path(tmp_path).exists()


def test_two_updates_over_real_sockets(running_buffer: Running, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    addresses, thread, _ = running_buffer
    hints = make_subscriber(context, addresses.hints)
    learner, actor, other = (SocketPeer(context, addresses.router, name) for name in ("learner", "actor-0", "actor-1"))
    for version in range(2):
        played = 0
        while played < 4:
            played += actor.play(1, version) + other.play(1, version)
        learner.say(protocol.BatchRequest(version=version, num_groups=2))
        frames = learner.frames()
        batch = protocol.decode(frames[0])
        assert isinstance(batch, protocol.Batch)
        assert batch.groups == [2 * version, 2 * version + 1]
        assert len(frames) == 21
        assert protocol.read_trajectory(frames[-5:]).versions.tolist() == [version] * 3
        learner.say(protocol.Trained(version=version + 1, groups=batch.groups))
    learner.say(protocol.Stop(reason="enough"))
    assert learner.expect(protocol.Stop).reason == actor.expect(protocol.Stop).reason == "enough"
    thread.join(5.0)
    assert not thread.is_alive()
    published = []
    while hints.poll(200):
        published.append(protocol.decode(hints.recv()))
    assert published[-2:] == [protocol.VersionHint(version=2), protocol.Stop(reason="enough")]


def test_the_stop_event_ends_the_role_and_tells_everyone(
    running_buffer: Running, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    addresses, thread, stop = running_buffer
    actor = SocketPeer(context, addresses.router, "actor-0")
    start_s = time.monotonic()
    stop.set()
    assert actor.expect(protocol.Stop).reason == "the buffer was told to end"
    thread.join(5.0)
    assert time.monotonic() - start_s < 3.0


def test_a_taken_port_ends_the_role_with_the_cure(tmp_path: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as taken:
        port = taken.bind_to_random_port("tcp://127.0.0.1")
        spec = new_spec(run_dir=str(tmp_path), buffer=BufferSection(port=port))
        with pytest.raises(InputError, match=rf"buffer\.port={port}: .*buffer\.port=0"):
            buffer_main._body(spec, threading.Event())
    assert not buffer_main.address_path(tmp_path).exists()


def test_waiting_for_a_dead_or_mute_buffer_ends(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="ended before it listened"):
        buffer_main.wait_for_addresses(tmp_path, 5.0, lambda: False)
    with pytest.raises(RunError, match=r"did not listen within 0\.05 s"):
        buffer_main.wait_for_addresses(tmp_path, 0.05, lambda: True)
    path = buffer_main.address_path(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"router": "tcp://127.0.0.1:1"}))
    with pytest.raises(RunError, match="damaged"):
        buffer_main.wait_for_addresses(tmp_path, 1.0, lambda: True)


async def test_deadlines_are_kept_while_nothing_arrives() -> None:
    """The loop wakes for a group's deadline by itself; the clock is the test's."""
    clock = [0.0]
    mailbox = MemoryMailbox()
    broker = Broker(new_spec(deadline_s=5.0))
    stop = threading.Event()
    now: Callable[[], float] = lambda: clock[0]  # noqa: E731
    loop = asyncio.create_task(serve(broker, mailbox, stop, now))
    actor = mailbox.connect("actor-0")
    actor.send([protocol.encode(protocol.Hello(role="actor", name="actor-0", run_id="run-1"))])
    assert isinstance(protocol.decode((await actor.receive(2.0))[0]), protocol.Welcome)
    actor.send([protocol.encode(protocol.LeaseRequest(capacity=8))])
    assert isinstance(protocol.decode((await actor.receive(2.0))[0]), protocol.LeaseGrant)
    actor.send([protocol.encode(protocol.LeaseRequest(capacity=8))])
    clock[0] = 5.0
    grant = protocol.decode((await actor.receive(2.0))[0])
    assert isinstance(grant, protocol.LeaseGrant)
    assert {lease.group for lease in grant.leases} == {4, 5, 6, 7}
    stop.set()
    assert await asyncio.wait_for(loop, 2.0) == "the buffer was told to end"
    assert isinstance(protocol.decode((await actor.receive(2.0))[0]), protocol.Stop)


async def test_an_actor_that_cannot_be_reached_loses_its_leases_at_once() -> None:
    mailbox = MemoryMailbox()
    broker = Broker(new_spec())
    stop = threading.Event()
    loop = asyncio.create_task(serve(broker, mailbox, stop))
    gone, other = mailbox.connect("actor-0"), mailbox.connect("actor-1")
    for actor in (gone, other):
        actor.send([protocol.encode(protocol.Hello(role="actor", name=actor.identity, run_id="run-1"))])
        await actor.receive(2.0)
    gone.send([protocol.encode(protocol.LeaseRequest(capacity=8))])
    await gone.receive(2.0)
    other.send([protocol.encode(protocol.LeaseRequest(capacity=8))])
    mailbox.disconnect("actor-0")
    gone.send([protocol.encode(protocol.Heartbeat(stats=protocol.ActorStats()))])  # its last message; nobody answers
    grant = protocol.decode((await other.receive(2.0))[0])
    assert isinstance(grant, protocol.LeaseGrant)
    assert [(lease.group, lease.attempt) for lease in grant.leases] == [(n, 1) for n in range(4) for _ in range(2)]
    stop.set()
    await asyncio.wait_for(loop, 2.0)
