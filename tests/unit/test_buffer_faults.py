"""What goes wrong at the buffer's peers: damaged frames, garbage, silence, deadlines, a stop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import structlog

from async_agent_rl import protocol
from async_agent_rl.buffer.batching import WAIT_REPORT_S
from async_agent_rl.buffer.broker import ACTOR_SILENCE_S, Outgoing
from async_agent_rl.config import (
    BufferSection,
)
from async_agent_rl.errors import DropReason, FailureKind
from async_agent_rl.protocol import AnyMessage, Frame
from tests.broker_harness import Wire, trajectory_of


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


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
