"""The group state machine: complete groups only, nothing lost, nothing twice."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from async_agent_rl.buffer.groups import GroupTable, task_index
from async_agent_rl.buffer.records import GroupState, Held, Outcome
from async_agent_rl.errors import DropReason, FailureKind, ProtocolError, RunError
from async_agent_rl.protocol import Lease, TrajectoryDone, TurnInfo
from async_agent_rl.seeds import Purpose, derive_seed

HELD = Held(frames=[b"x"], oldest_version=0)


def new_table(group_size: int = 3, max_failures: int = 1, deadline_s: float = 100.0, num_tasks: int = 5) -> GroupTable:
    return GroupTable(
        run_seed=7, num_tasks=num_tasks, group_size=group_size, max_failures=max_failures, deadline_s=deadline_s
    )


def header_of(lease: Lease, actor: str = "a", member: int | None = None) -> TrajectoryDone:
    turn = TurnInfo(
        num_prompt_tokens=1,
        num_action_tokens=1,
        reward=0.0,
        state_key="s",
        observation_key="o",
        action="x",
        format_ok=True,
        is_admissible=True,
    )
    return TrajectoryDone(
        lease_id=lease.lease_id,
        group=lease.group,
        member=lease.member if member is None else member,
        attempt=lease.attempt,
        task_index=lease.task_index,
        actor=actor,
        incarnation=0,
        kv_policy="none",
        turns=[turn],
        won=False,
        score=0.0,
        truncated=False,
        started_s=0.0,
        finished_s=1.0,
    )


def finish(table: GroupTable, lease: Lease, actor: str = "a") -> Outcome:
    return table.record_trajectory(actor, header_of(lease, actor), HELD)


def places(leases: list[Lease]) -> list[tuple[int, int]]:
    return [(lease.group, lease.member) for lease in leases]


def test_every_pass_plays_every_task_once_in_an_order_of_its_own() -> None:
    passes = [[task_index(3, 20 * number + place, 20) for place in range(20)] for number in range(3)]
    assert all(sorted(one) == list(range(20)) for one in passes)
    assert passes[0] != passes[1] != passes[2]
    assert [task_index(4, place, 20) for place in range(20)] != passes[0]


def test_the_only_task_is_played_by_every_group() -> None:
    assert [task_index(0, group, 1) for group in range(3)] == [0, 0, 0]


def test_a_group_goes_to_one_actor_while_it_has_room_and_then_to_others() -> None:
    table = new_table()
    assert places(table.lease_some("a", 8, True, 0.0)) == [(0, 0), (0, 1), (0, 2)]
    assert places(table.lease_some("a", 2, True, 0.0)) == [(1, 0), (1, 1)]
    assert places(table.lease_some("b", 8, True, 0.0)) == [(2, 0), (2, 1), (2, 2)]  # not the rest of a's group
    assert places(table.lease_some("a", 8, True, 0.0)) == [(1, 2)]
    assert places(table.lease_some("a", 1, True, 0.0)) == [(3, 0)]
    assert places(table.lease_some("b", 8, False, 0.0)) == [(3, 1), (3, 2)]  # no new group: help with a's
    assert table.lease_some("b", 8, False, 0.0) == []


def test_members_of_a_group_share_the_task_and_differ_in_the_seed() -> None:
    leases = new_table().lease_some("a", 8, True, 0.0)
    assert {lease.task_index for lease in leases} == {task_index(7, 0, 5)}
    assert [lease.seed for lease in leases] == [derive_seed(7, Purpose.ENVIRONMENT, 0, member) for member in range(3)]


@pytest.mark.parametrize("group_size", [1, 2, 8])
def test_a_group_is_complete_with_exactly_all_members(group_size: int) -> None:
    table = new_table(group_size)
    leases = table.lease_some("a", group_size, True, 0.0)
    for lease in leases[:-1]:
        finish(table, lease)
        assert table.count(GroupState.COMPLETE) == 0
        with pytest.raises(RunError, match="about to be delivered"):
            table.deliver([0])
    finish(table, leases[-1])
    assert table.count(GroupState.COMPLETE) == 1
    assert len(table.deliver([0])[0].held) == group_size


def test_a_failed_member_is_played_again_with_the_same_seed() -> None:
    table = new_table()
    first = table.lease_some("a", 8, True, 0.0)[1]
    assert table.record_failure("a", first.lease_id, FailureKind.ENVIRONMENT_ERROR, 1.0) == (Outcome.RECORDED, None)
    (again,) = table.lease_some("a", 8, True, 2.0)
    assert (again.group, again.member, again.attempt, again.seed) == (0, 1, 1, first.seed)
    assert again.lease_id != first.lease_id


def test_one_failure_too_many_drops_the_group_and_blames_one_member() -> None:
    table = new_table(max_failures=1)
    leases = table.lease_some("a", 8, True, 0.0)
    finish(table, leases[0])
    table.record_failure("a", leases[1].lease_id, FailureKind.ENGINE_ERROR, 1.0)
    (again,) = table.lease_some("a", 8, True, 2.0)
    _, drop = table.record_failure("a", again.lease_id, FailureKind.ENGINE_ERROR, 5.0)
    assert drop is not None
    assert (drop.number, drop.reason, drop.age_s, drop.num_held) == (0, DropReason.TOO_MANY_FAILURES, 5.0, 1)
    assert table.tally.trajectories_dropped == {DropReason.TOO_MANY_FAILURES: 1, DropReason.SIBLING_FAILED: 2}
    assert table.tally.leases_expired == 1  # the third member was still playing
    assert finish(table, leases[2]) is Outcome.LATE
    assert table.num_live == 0
    table.check_conservation()


def test_failures_of_different_members_do_not_add_up() -> None:
    table = new_table(max_failures=1)
    for lease in table.lease_some("a", 8, True, 0.0):
        assert table.record_failure("a", lease.lease_id, FailureKind.ENVIRONMENT_ERROR, 1.0)[1] is None
    assert [lease.attempt for lease in table.lease_some("a", 8, False, 1.0)] == [1, 1, 1]


def test_the_deadline_counts_from_the_first_lease_and_spares_complete_groups() -> None:
    table = new_table(group_size=2, deadline_s=10.0)
    for lease in table.lease_some("a", 2, True, 0.0):
        finish(table, lease)
    table.lease_some("a", 1, True, 3.0)
    assert table.seconds_to_deadline(4.0) == 9.0
    assert table.drop_overdue(12.9) == []
    table.lease_some("a", 1, True, 12.9)  # a later lease buys no time
    (drop,) = table.drop_overdue(13.0)
    assert (drop.number, drop.reason) == (1, DropReason.DEADLINE)
    assert [group.number for group in table.groups] == [0]
    assert table.seconds_to_deadline(13.0) == float("inf")
    table.check_conservation()


def test_a_repeated_result_is_counted_and_changes_nothing() -> None:
    table = new_table(group_size=2)
    lease, other = table.lease_some("a", 2, True, 0.0)
    assert [finish(table, lease) for _ in range(3)] == [Outcome.RECORDED, Outcome.DUPLICATE, Outcome.DUPLICATE]
    assert table.record_failure("a", lease.lease_id, FailureKind.CANCELLED, 0.0) == (Outcome.DUPLICATE, None)
    assert table.count(GroupState.COMPLETE) == 0  # not two of two
    finish(table, other)
    table.deliver([0])
    table.train([0])
    assert finish(table, other) is Outcome.DUPLICATE
    assert table.tally.duplicates == 4
    table.check_conservation()


def test_a_lost_actors_members_are_played_elsewhere_and_its_late_results_ignored() -> None:
    table = new_table(group_size=2)
    mine, _ = table.lease_some("a", 2, True, 0.0)
    assert table.give_up_actor("a", 1.0) == (2, [])
    again = table.lease_some("b", 8, True, 2.0)
    assert places(again) == [(0, 0), (0, 1)]
    assert finish(table, mine, "a") is Outcome.LATE
    assert finish(table, again[0], "b") is Outcome.RECORDED
    assert table.tally.leases_failed == {FailureKind.ACTOR_LOST: 2}
    table.check_conservation()


def test_an_actor_lost_once_too_often_costs_its_group_once() -> None:
    table = new_table(group_size=3, max_failures=0)
    table.lease_some("a", 3, True, 0.0)
    num_failed, drops = table.give_up_actor("a", 1.0)
    assert (num_failed, [drop.number for drop in drops]) == (1, [0])
    assert table.tally.leases_expired == 2
    table.check_conservation()


def test_a_result_for_a_lease_of_someone_else_is_unknown() -> None:
    table = new_table()
    lease = table.lease_some("a", 1, True, 0.0)[0]
    assert finish(table, lease, "b") is Outcome.UNKNOWN
    assert table.record_failure("b", lease.lease_id, FailureKind.CANCELLED, 0.0) == (Outcome.UNKNOWN, None)
    assert table.record_failure("a", 99, FailureKind.CANCELLED, 0.0) == (Outcome.UNKNOWN, None)
    assert finish(table, lease, "a") is Outcome.RECORDED


def test_a_header_that_contradicts_its_lease_is_refused_and_the_lease_lives() -> None:
    table = new_table()
    lease = table.lease_some("a", 1, True, 0.0)[0]
    with pytest.raises(ProtocolError, match=r"lease 0 claims .*\(0, 2, 0"):
        table.record_trajectory("a", header_of(lease, member=2), HELD)
    assert finish(table, lease) is Outcome.RECORDED


def test_only_delivered_groups_can_be_trained_and_the_rest_of_a_batch_goes_back() -> None:
    table = new_table(group_size=1)
    for _ in range(3):
        finish(table, table.lease_some("a", 1, True, 0.0)[0])
    table.deliver([0, 1])
    assert table.train([0, 2, 9]) == [2, 9]
    assert [(group.number, group.state) for group in table.groups] == [
        (1, GroupState.COMPLETE),
        (2, GroupState.COMPLETE),
    ]
    assert (table.tally.groups_trained, table.tally.trajectories_trained) == (1, 1)
    table.check_conservation()


def test_a_lost_group_is_noticed() -> None:
    table = new_table()
    table.lease_some("a", 1, True, 0.0)
    table.tally.groups_issued += 1
    with pytest.raises(RunError, match="groups do not add up: 2 issued, 0 ended, 1 live"):
        table.check_conservation()


class AnySchedule(RuleBasedStateMachine):
    """Actors come, go, fail, repeat themselves and answer late; a learner trains or drops what is complete."""

    def __init__(self) -> None:
        super().__init__()
        self.table = new_table(group_size=3, max_failures=1, deadline_s=20.0)
        self.now_s = 0.0
        self.leases: list[tuple[str, Lease]] = []
        self.trained: list[int] = []
        self.in_members: set[tuple[int, int]] = set()

    @rule(actor=st.sampled_from("abc"), room=st.integers(1, 7), may_open=st.booleans())
    def lease(self, actor: str, room: int, may_open: bool) -> None:
        leases = self.table.lease_some(actor, room, may_open, self.now_s)
        assert len(leases) <= room
        assert len({lease.group for lease in leases}) <= 1
        self.leases += [(actor, lease) for lease in leases]

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """Any lease ever granted, so also ended, repeated and expired ones."""
        if not self.leases:
            return
        actor, lease = data.draw(st.sampled_from(self.leases))
        if finish(self.table, lease, actor) is Outcome.RECORDED:
            assert (lease.group, lease.member) not in self.in_members  # nothing twice
            self.in_members.add((lease.group, lease.member))

    @rule(data=st.data(), kind=st.sampled_from(FailureKind))
    def fail(self, data: st.DataObject, kind: FailureKind) -> None:
        if self.leases:
            actor, lease = data.draw(st.sampled_from(self.leases))
            self.table.record_failure(actor, lease.lease_id, kind, self.now_s)

    @rule(actor=st.sampled_from("abc"))
    def lose(self, actor: str) -> None:
        self.table.give_up_actor(actor, self.now_s)
        assert self.table.num_leased_to(actor) == 0

    @rule(seconds=st.floats(0.0, 15.0))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.table.drop_overdue(self.now_s)
        assert self.table.seconds_to_deadline(self.now_s) > 0

    @rule(keep=st.booleans())
    def train(self, keep: bool) -> None:
        numbers = [group.number for group in self.table.groups if group.is_complete]
        for group in self.table.deliver(numbers):
            assert {(group.number, member) for member in range(3)} <= self.in_members
        self.table.train(numbers[1:] if keep else numbers)
        self.trained += numbers[1:] if keep else numbers

    @rule(data=st.data(), reason=st.sampled_from([DropReason.FILTERED, DropReason.TOO_STALE]))
    def drop(self, data: st.DataObject, reason: DropReason) -> None:
        numbers = [group.number for group in self.table.groups]
        if numbers:
            self.table.drop(data.draw(st.sampled_from(numbers)), reason, self.now_s)

    @invariant()
    def nothing_is_lost_or_counted_twice(self) -> None:
        self.table.check_conservation()
        assert max(Counter(self.trained).values(), default=1) == 1
        for group in self.table.groups:
            assert group.is_complete == (len(group.held) == 3)


TestAnySchedule = AnySchedule.TestCase
TestAnySchedule.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
