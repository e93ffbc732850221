"""The buffer as its peers see it, message by message: leases, batches, staleness, drops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import structlog

from async_agent_rl import protocol
from async_agent_rl.buffer.batching import REDELIVERY_S
from async_agent_rl.buffer.broker import MAX_PEERS, Outgoing
from async_agent_rl.errors import DropReason
from tests.broker_harness import Wire, trajectory_of


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


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
