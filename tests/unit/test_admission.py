"""Admission and batch selection: the staleness bound under every schedule, for strict and for ready order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from async_agent_rl.buffer.admission import Admission, Refusal, blocking_group, select_batch
from async_agent_rl.buffer.groups import GroupTable
from async_agent_rl.buffer.leasing import LeaseDesk
from async_agent_rl.buffer.records import Group, GroupState, Held, Member
from async_agent_rl.errors import DropReason, FailureKind, ProtocolError
from async_agent_rl.protocol import Lease, LeaseRequest, TrajectoryDone, TurnInfo, staleness

TURN = TurnInfo(
    num_prompt_tokens=1,
    num_action_tokens=1,
    reward=0.0,
    state_key="s",
    observation_key="o",
    action="x",
    format_ok=True,
    is_admissible=True,
)


def new_admission(*, per_update: int = 2, max_staleness: int = 1, total: int = 100) -> Admission:
    return Admission(groups_per_update=per_update, max_staleness=max_staleness, total_groups=total)


def a_group(number: int, versions: list[int], *, size: int = 2, completion: int = -1) -> Group:
    members = [Member(held=Held(frames=[], oldest_version=version)) for version in versions]
    members += [Member() for _ in range(size - len(versions))]
    state = GroupState.COMPLETE if len(versions) == size else GroupState.OPEN
    return Group(number, 0, 0.0, "a", members, state, completion)


def header_of(lease: Lease, actor: str) -> TrajectoryDone:
    return TrajectoryDone(
        lease_id=lease.lease_id,
        group=lease.group,
        member=lease.member,
        attempt=lease.attempt,
        task_index=lease.task_index,
        actor=actor,
        incarnation=0,
        kv_policy="none",
        turns=[TURN],
        won=False,
        score=0.0,
        truncated=False,
        started_s=0.0,
        finished_s=1.0,
    )


@pytest.mark.parametrize(
    ("max_staleness", "version", "num_live", "expected"),
    [
        (0, 0, 0, 2),  # B = 2: one update's worth, then the barrier
        (0, 0, 2, 0),
        (0, 1, 0, 2),
        (1, 0, 0, 4),
        (1, 0, 3, 1),
        (1, 0, 4, 0),
        (1, 1, 2, 2),  # one update done: its places are consumed, two groups live
        (2, 5, 1, 5),
    ],
)
def test_group_n_may_begin_only_while_version_reaches_n_over_b_minus_s(
    max_staleness: int, version: int, num_live: int, expected: int
) -> None:
    admission = new_admission(max_staleness=max_staleness)
    if version:
        admission.advance(version)
    assert admission.openings(num_live) == expected
    for extra in range(8):
        n = admission.next_place(num_live + extra)
        assert (admission.openings(num_live + extra) > 0) == (version >= n // 2 - max_staleness)


def test_the_run_needs_no_more_groups_than_its_updates() -> None:
    admission = new_admission(max_staleness=5, total=3)
    assert (admission.openings(0), admission.refusal(0)) == (3, None)
    assert admission.refusal(3) is Refusal.FINISHED
    assert admission.openings(2) == 1  # one was dropped: another takes its place


def test_the_bound_is_told_apart_from_the_end() -> None:
    assert new_admission(total=100).refusal(4) is Refusal.STALENESS
    assert new_admission(total=4).refusal(4) is Refusal.FINISHED


def test_places_of_dropped_groups_of_a_batch_are_free_only_when_no_update_consumed_them() -> None:
    admission = new_admission(max_staleness=0)
    admission.drop_delivered(1)
    assert admission.openings(num_live=1) == 0  # the update may still happen without it
    admission.refund_delivered()
    assert admission.openings(num_live=1) == 1
    admission.drop_delivered(1)
    admission.advance(1)
    assert admission.openings(num_live=0) == 2


def test_a_version_never_comes_twice() -> None:
    admission = new_admission()
    admission.advance(1)
    with pytest.raises(ProtocolError, match="version 1 was announced"):
        admission.advance(1)


def test_strict_order_waits_for_the_lowest_groups() -> None:
    groups = [a_group(3, [0, 0]), a_group(4, [0]), a_group(6, [0, 0]), a_group(7, [0, 0])]
    selection = select_batch(groups, order="lease", num_groups=2, version=0, max_staleness=0)
    assert (selection.batch, selection.too_stale) == (None, [])
    groups[1] = a_group(4, [0, 0])
    assert select_batch(groups, order="lease", num_groups=2, version=0, max_staleness=0).batch == [3, 4]
    assert select_batch(groups[:1], order="lease", num_groups=2, version=0, max_staleness=0).batch is None


def test_ready_order_takes_what_was_complete_first() -> None:
    groups = [
        a_group(0, [0]),
        a_group(1, [0, 0], completion=2),
        a_group(2, [0, 0], completion=0),
        a_group(3, [0, 0], completion=1),
    ]
    assert select_batch(groups, order="ready", num_groups=2, version=0, max_staleness=0).batch == [2, 3]
    assert select_batch(groups, order="ready", num_groups=4, version=0, max_staleness=0).batch is None


@pytest.mark.parametrize("order", ["lease", "ready"])
def test_over_age_groups_are_dropped_never_delivered(order: str) -> None:
    # Version 5, S = 2: tokens of version 3 are the oldest allowed; one old member condemns its group.
    groups = [
        a_group(0, [2, 5], completion=0),
        a_group(1, [3, 4], completion=1),
        a_group(2, [1]),
        a_group(3, [5, 5], completion=2),
    ]
    assert order in ("lease", "ready")
    selection = select_batch(
        groups, order="ready" if order == "ready" else "lease", num_groups=2, version=5, max_staleness=2
    )
    assert (selection.batch, selection.too_stale) == ([1, 3], [0, 2])


def test_a_waiting_batch_can_name_the_group_it_waits_for() -> None:
    groups = [a_group(0, [0, 0]), a_group(1, [0]), a_group(2, [])]
    found = blocking_group(groups, order="lease", num_groups=2)
    assert found is groups[1]
    assert blocking_group(groups[:1], order="lease", num_groups=2) is None


def new_desk(*, slots: int, per_update: int = 4, max_staleness: int = 0) -> tuple[LeaseDesk, GroupTable, Admission]:
    table = GroupTable(run_seed=0, num_tasks=9, group_size=2, max_failures=1, deadline_s=100.0)
    admission = new_admission(per_update=per_update, max_staleness=max_staleness)
    return LeaseDesk(table, admission, slots), table, admission


def test_actors_that_ask_together_share_equally_and_keep_groups_whole() -> None:
    desk, _, _ = new_desk(slots=8)
    desk.park("a", LeaseRequest(capacity=8))
    desk.park("b", LeaseRequest(capacity=8))
    granted = desk.grant(0.0)
    assert {actor: [lease.group for lease in leases] for actor, leases in granted.items()} == {
        "a": [0, 0, 2, 2],
        "b": [1, 1, 3, 3],
    }
    assert desk.grant(0.0) == {}  # each request is answered once


def test_an_actor_never_holds_more_leases_than_slots() -> None:
    desk, table, _ = new_desk(slots=3)
    desk.park("a", LeaseRequest(capacity=3))
    assert len(desk.grant(0.0)["a"]) == 3
    desk.park("a", LeaseRequest(capacity=3))  # sent before the grant arrived
    assert desk.grant(0.0) == {}
    table.record_failure("a", 0, FailureKind.ENVIRONMENT_ERROR, 0.0)
    assert len(desk.grant(0.0)["a"]) == 1


def test_a_minimum_is_waited_for_unless_nothing_else_is_out() -> None:
    desk, table, _ = new_desk(slots=8)
    desk.park("a", LeaseRequest(capacity=8, minimum=8))
    assert len(desk.grant(0.0)["a"]) == 8
    table.record_failure("a", 0, FailureKind.ENVIRONMENT_ERROR, 0.0)
    desk.park("a", LeaseRequest(capacity=1, minimum=8))
    assert desk.grant(0.0) == {}  # seven episodes are out
    for lease_id in range(1, 8):
        table.record_failure("a", lease_id, FailureKind.ENVIRONMENT_ERROR, 0.0)
    desk.park("a", LeaseRequest(capacity=7, minimum=8))
    assert len(desk.grant(0.0)["a"]) == 7  # holding these back would wait for ever


def test_blocked_time_counts_only_while_the_bound_stands_in_the_way() -> None:
    desk, table, _ = new_desk(slots=4, per_update=1)
    desk.park("a", LeaseRequest(capacity=4))
    assert len(desk.grant(0.0)["a"]) == 2  # one group of two
    assert desk.blocked_s(5.0) == 0.0  # nobody asks
    desk.park("a", LeaseRequest(capacity=2))
    desk.grant(5.0)
    assert desk.blocked_s(8.0) == 3.0
    for lease in (0, 1):
        table.record_failure("a", lease, FailureKind.ENVIRONMENT_ERROR, 8.0)
    desk.grant(8.0)  # the two failed members go out again
    assert desk.blocked_s(20.0) == 3.0


class AnyPipeline(RuleBasedStateMachine):
    """Groups, leases, admission and selection under any interleaving of actors, failures, drops and updates."""

    order: str
    honest = True
    """Actors sample with weights at least as new as their grant named."""

    @initialize(max_staleness=st.integers(0, 3), per_update=st.integers(1, 3), size=st.integers(1, 3))
    def begin(self, max_staleness: int, per_update: int, size: int) -> None:
        self.S, self.B, self.G = max_staleness, per_update, size
        self.table = GroupTable(run_seed=0, num_tasks=4, group_size=size, max_failures=1, deadline_s=30.0)
        self.admission = new_admission(per_update=per_update, max_staleness=max_staleness, total=60)
        self.desk = LeaseDesk(self.table, self.admission, slots=6)
        self.now_s = 0.0
        self.out: list[tuple[str, Lease, int]] = []
        self.batch: list[int] = []
        self.delivered: list[int] = []

    @rule(actor=st.sampled_from("ab"), capacity=st.integers(1, 6))
    def ask(self, actor: str, capacity: int) -> None:
        self.desk.park(actor, LeaseRequest(capacity=capacity))
        for name, leases in self.desk.grant(self.now_s).items():
            self.out += [(name, lease, self.admission.version) for lease in leases]

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if not self.out:
            return
        actor, lease, granted_at = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        oldest = data.draw(st.integers(granted_at if self.honest else 0, self.admission.version))
        self.table.record_trajectory(actor, header_of(lease, actor), Held(frames=[], oldest_version=oldest))

    @rule(data=st.data())
    def finish_a_whole_round(self, data: st.DataObject) -> None:
        while self.out:
            self.finish(data)

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        if self.out:
            actor, lease, _ = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
            self.table.record_failure(actor, lease.lease_id, FailureKind.ENVIRONMENT_ERROR, self.now_s)

    @rule(actor=st.sampled_from("ab"))
    def lose(self, actor: str) -> None:
        self.table.give_up_actor(actor, self.now_s)
        self.desk.forget(actor)

    @rule(seconds=st.floats(0.0, 20.0))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.table.drop_overdue(self.now_s)

    @rule()
    def consume(self) -> None:
        """The learner asks; what it holds already, if anything, comes first again."""
        self.admission.refund_delivered()
        version = self.admission.version
        selection = select_batch(
            self.table.groups,
            order="ready" if self.order == "ready" else "lease",
            num_groups=self.B,
            version=version,
            max_staleness=self.S,
        )
        if self.order == "lease" and self.honest:
            assert selection.too_stale == []  # admission alone makes the bound hold
        for number in selection.too_stale:
            self.table.drop(number, DropReason.TOO_STALE, self.now_s)
        if selection.batch is None:
            return
        groups = self.table.deliver(selection.batch)
        assert len(groups) == self.B
        for group in groups:
            assert len(group.held) == self.G
            assert staleness(version, group.held) <= self.S
            assert group.number in self.batch or group.number not in self.delivered
        if self.order == "lease":
            assert selection.batch == [group.number for group in self.table.groups][: self.B]
        self.batch = selection.batch
        self.delivered += [number for number in selection.batch if number not in self.delivered]

    @rule(num_filtered=st.integers(0, 2))
    def learn(self, num_filtered: int) -> None:
        """An update, with some groups of its batch filtered out first."""
        if not self.batch:
            return
        for number in self.batch[:num_filtered]:
            self.table.drop(number, DropReason.FILTERED, self.now_s)
            self.admission.drop_delivered(1)
        self.ask("a", 6)  # the worst moment to let new groups begin
        self.admission.advance(self.admission.version + 1)
        assert self.table.train(self.batch[num_filtered:]) == []
        self.batch = []

    @rule(data=st.data())
    def one_smooth_update(self, data: st.DataObject) -> None:
        """So that schedules get past the first versions."""
        for actor in ("a", "b", "a", "b"):
            self.ask(actor, 6)
            self.finish_a_whole_round(data)
        self.consume()
        self.learn(0)

    @rule()
    def skip_update(self) -> None:
        """The whole batch is dropped and no update happens."""
        for number in self.batch:
            self.table.drop(number, DropReason.NON_FINITE_UPDATE, self.now_s)
            self.admission.drop_delivered(1)
        self.batch = []

    @invariant()
    def it_adds_up(self) -> None:
        if hasattr(self, "table"):
            self.table.check_conservation()
            assert self.table.num_live <= (self.S + 1) * self.B


class StrictOrder(AnyPipeline):
    order = "lease"


class ReadyOrder(AnyPipeline):
    order = "ready"


class LyingActors(AnyPipeline):
    """Actors that ignore the version they were told: the check at consumption is the only guard."""

    order = "lease"
    honest = False


_SETTINGS = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestStrictOrder = StrictOrder.TestCase
TestStrictOrder.settings = _SETTINGS
TestReadyOrder = ReadyOrder.TestCase
TestReadyOrder.settings = _SETTINGS
TestLyingActors = LyingActors.TestCase
TestLyingActors.settings = _SETTINGS
