"""Which groups exist, who plays their members and what became of them: groups, members and leases as a state machine.

Knows nothing of sockets, files, versions or clocks: time is an argument, in seconds of any one monotonic clock.

A group is opened by its first lease, which brings all its G members into being. A member waits, is leased, waits again
when its lease fails, and is in once a valid trajectory is recorded. The group is complete when all G are in.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from async_agent_rl.buffer.records import Drop, Group, GroupState, Held, Member, Outcome, Tally
from async_agent_rl.errors import DropReason, FailureKind, ProtocolError, RunError
from async_agent_rl.protocol import Lease, TrajectoryDone
from async_agent_rl.seeds import Purpose, derive_seed, generator

ENDED_LEASES_KEPT = 65_536
"""Ended leases whose ending is remembered; a result for an older one counts as late, whatever it was."""


def task_index(run_seed: int, group: int, num_tasks: int) -> int:
    """The task a group plays: every pass over the tasks is a seeded permutation of its own.

    Args:
        run_seed: `run.seed`.
        group: number of the group, 0-based.
        num_tasks: tasks of the training split, at least 1.

    Returns:
        An index in [0, num_tasks); groups k*num_tasks .. (k+1)*num_tasks - 1 play each task once.
    """
    return int(_task_order(run_seed, group // num_tasks, num_tasks)[group % num_tasks])


@functools.lru_cache(maxsize=2)
def _task_order(run_seed: int, pass_number: int, num_tasks: int) -> NDArray[np.int64]:
    return generator(run_seed, Purpose.TASK_ORDER, pass_number).permutation(num_tasks)


@dataclasses.dataclass(frozen=True)
class LiveLease:
    lease: Lease
    actor: str


class GroupTable:
    """All live groups and leases. What has ended lives on only in `tally`, so memory is that of the live groups."""

    def __init__(self, *, run_seed: int, num_tasks: int, group_size: int, max_failures: int, deadline_s: float) -> None:
        """
        Args:
            max_failures: times a member is played again; one failure more drops its group.
            deadline_s: from a group's first lease to its last trajectory.
        """
        self._run_seed = run_seed
        self._num_tasks = num_tasks
        self.group_size = group_size
        self._max_failures = max_failures
        self._deadline_s = deadline_s
        self._groups: dict[int, Group] = {}  # in order of number, because numbers only grow
        self._leases: dict[int, LiveLease] = {}
        self._ended: dict[int, Outcome] = {}  # what a further result of that lease would be
        self._next_lease_id = 0
        self._next_completion = 0
        self.tally = Tally()

    @property
    def groups(self) -> Iterable[Group]:
        """Live groups, ascending."""
        return self._groups.values()

    @property
    def num_live(self) -> int:
        return len(self._groups)

    @property
    def num_waiting(self) -> int:
        """Members that need a lease, over all live groups."""
        return sum(group.num_waiting for group in self._groups.values() if not group.is_complete)

    @property
    def num_leased(self) -> int:
        return len(self._leases)

    def num_leased_to(self, actor: str) -> int:
        return sum(live.actor == actor for live in self._leases.values())

    def count(self, state: GroupState) -> int:
        return sum(group.state is state for group in self._groups.values())

    def find(self, number: int) -> Group | None:
        """The live group of that number."""
        return self._groups.get(number)

    def actors_of(self, group: Group) -> list[str]:
        """Who holds a lease of it, one entry a lease."""
        ids = (member.lease_id for member in group.members)
        return [self._leases[lease_id].actor for lease_id in ids if lease_id is not None]

    def lease_some(self, actor: str, room: int, may_open: bool, now_s: float) -> list[Lease]:
        """Lease up to `room` members of one group to an actor.

        Its own unfinished groups come first, then a new group, then what others have no room for: so a group stays
        with one actor while that one has room, and nobody idles beside a group that waits.

        Args:
            may_open: whether admission lets a new group begin.

        Returns:
            The leases, members ascending; empty when there is nothing to lease.
        """
        waiting = [group for group in self._groups.values() if not group.is_complete and group.num_waiting]
        group = next((group for group in waiting if group.owner in (actor, None)), None)
        if group is None and may_open:
            group = self._open(actor, now_s)
        if group is None:
            group = next(iter(waiting), None)
        if group is None:
            return []
        if group.owner is None:
            group.owner = actor
        places = [index for index, member in enumerate(group.members) if member.is_waiting]
        return [self._lease(group, index, actor) for index in places[:room]]

    def record_trajectory(self, actor: str, header: TrajectoryDone, held: Held) -> Outcome:
        """Take in what a lease produced.

        Raises:
            ProtocolError: the header contradicts the lease; nothing is recorded.
        """
        known = self._known_outcome(actor, header.lease_id)
        if known is not None:
            return known
        lease = self._leases[header.lease_id].lease
        claimed = (header.group, header.member, header.attempt, header.task_index)
        granted = (lease.group, lease.member, lease.attempt, lease.task_index)
        if claimed != granted:
            raise ProtocolError(
                f"{actor}: trajectory of lease {lease.lease_id} claims (group, member, attempt, task) {claimed}, "
                f"the lease was for {granted}"
            )
        group = self._groups[lease.group]
        self._end_lease(lease.lease_id, Outcome.DUPLICATE)
        self.tally.leases_finished += 1
        group.members[lease.member].held = held
        if len(group.held) == self.group_size:
            group.state = GroupState.COMPLETE
            group.completion = self._next_completion
            self._next_completion += 1
        return Outcome.RECORDED

    def record_failure(self, actor: str, lease_id: int, kind: FailureKind, now_s: float) -> tuple[Outcome, Drop | None]:
        """End a lease without a trajectory; its member waits for another try, or its group is dropped."""
        known = self._known_outcome(actor, lease_id)
        if known is not None:
            return known, None
        return Outcome.RECORDED, self._fail(lease_id, kind, Outcome.DUPLICATE, now_s)

    def give_up_actor(self, actor: str, now_s: float) -> tuple[int, list[Drop]]:
        """Fail every lease of an actor that is gone. Returns how many there were, and the groups that cost."""
        lost = [lease_id for lease_id, live in self._leases.items() if live.actor == actor]
        drops = []
        num_failed = 0
        for lease_id in lost:
            if lease_id in self._leases:  # a drop on the way may have expired it
                num_failed += 1
                drops.append(self._fail(lease_id, FailureKind.ACTOR_LOST, Outcome.LATE, now_s))
        for group in self._groups.values():
            if group.owner == actor:
                group.owner = None
        return num_failed, [drop for drop in drops if drop is not None]

    def drop_overdue(self, now_s: float) -> list[Drop]:
        """Drop every incomplete group whose deadline has come."""
        overdue = [
            group.number
            for group in self._groups.values()
            if not group.is_complete and now_s >= group.opened_s + self._deadline_s
        ]
        return [self.drop(number, DropReason.DEADLINE, now_s) for number in overdue]

    def seconds_to_deadline(self, now_s: float) -> float:
        """Until the next group is overdue; infinite when none is open."""
        opened = [group.opened_s for group in self._groups.values() if not group.is_complete]
        return min(opened) + self._deadline_s - now_s if opened else float("inf")

    def drop(self, number: int, reason: DropReason, now_s: float, culprit: int | None = None) -> Drop:
        """End a live group untrained; leases still out expire.

        Args:
            culprit: the member that is to blame; its siblings then end as SIBLING_FAILED.
        """
        group = self._groups.pop(number)
        for index, member in enumerate(group.members):
            if member.lease_id is not None:
                self._end_lease(member.lease_id, Outcome.LATE)
                self.tally.leases_expired += 1
            own = reason if culprit in (None, index) else DropReason.SIBLING_FAILED
            self.tally.trajectories_dropped[own] += 1
        self.tally.groups_dropped[reason] += 1
        return Drop(number, group.task_index, reason, now_s - group.opened_s, len(group.held))

    def deliver(self, numbers: Iterable[int]) -> list[Group]:
        """Mark complete groups as handed to the learner."""
        groups = [self._groups[number] for number in numbers]
        for group in groups:
            if not group.is_complete or len(group.held) != self.group_size:
                raise RunError(f"group {group.number} was about to be delivered with {len(group.held)} members")
            group.state = GroupState.DELIVERED
        return groups

    def train(self, numbers: Iterable[int]) -> list[int]:
        """End delivered groups as trained. Returns the numbers that are no delivered group (an error of the learner).

        Delivered groups that are not named go back to complete.
        """
        strangers = []
        for number in numbers:
            group = self._groups.get(number)
            if group is None or group.state is not GroupState.DELIVERED:
                strangers.append(number)
                continue
            del self._groups[number]
            self.tally.groups_trained += 1
            self.tally.trajectories_trained += self.group_size
        for group in self._groups.values():
            if group.state is GroupState.DELIVERED:
                group.state = GroupState.COMPLETE
        return strangers

    def check_conservation(self) -> None:
        """Issued = terminal + live, for groups, trajectories and leases.

        Raises:
            RunError: something was lost or counted twice; names the level and the numbers.
        """
        tally = self.tally
        groups_ended = tally.groups_trained + tally.groups_dropped.total()
        trajectories_ended = tally.trajectories_trained + tally.trajectories_dropped.total()
        leases_ended = tally.leases_finished + tally.leases_failed.total() + tally.leases_expired
        live_members = sum(len(group.members) for group in self._groups.values())
        pointed_at = {m.lease_id for g in self._groups.values() for m in g.members if m.lease_id is not None}
        levels = (
            ("groups", tally.groups_issued, groups_ended, len(self._groups)),
            ("trajectories", tally.groups_issued * self.group_size, trajectories_ended, live_members),
            ("leases", tally.leases_issued, leases_ended, len(self._leases)),
            ("live leases", len(self._leases), 0, len(pointed_at)),
        )
        for level, issued, ended, live in levels:
            if issued != ended + live:
                raise RunError(f"{level} do not add up: {issued} issued, {ended} ended, {live} live")

    def _open(self, actor: str, now_s: float) -> Group:
        number = self.tally.groups_issued
        task = task_index(self._run_seed, number, self._num_tasks)
        members = [Member() for _ in range(self.group_size)]
        group = Group(number=number, task_index=task, opened_s=now_s, owner=actor, members=members)
        self._groups[number] = group
        self.tally.groups_issued += 1
        return group

    def _lease(self, group: Group, index: int, actor: str) -> Lease:
        member = group.members[index]
        lease = Lease(
            lease_id=self._next_lease_id,
            group=group.number,
            member=index,
            attempt=member.attempt,
            task_index=group.task_index,
            seed=derive_seed(self._run_seed, Purpose.ENVIRONMENT, group.number, index),
        )
        member.lease_id = lease.lease_id
        self._leases[lease.lease_id] = LiveLease(lease, actor)
        self._next_lease_id += 1
        self.tally.leases_issued += 1
        return lease

    def _fail(self, lease_id: int, kind: FailureKind, further: Outcome, now_s: float) -> Drop | None:
        lease = self._end_lease(lease_id, further)
        self.tally.leases_failed[kind] += 1
        member = self._groups[lease.group].members[lease.member]
        member.attempt += 1
        if member.attempt > self._max_failures:
            return self.drop(lease.group, DropReason.TOO_MANY_FAILURES, now_s, culprit=lease.member)
        return None

    def _end_lease(self, lease_id: int, further: Outcome) -> Lease:
        """Forget a live lease; `further` is what another result of it will be."""
        live = self._leases.pop(lease_id)
        group = self._groups.get(live.lease.group)
        if group is not None:
            group.members[live.lease.member].lease_id = None
        self._ended[lease_id] = further
        if len(self._ended) > ENDED_LEASES_KEPT:
            del self._ended[next(iter(self._ended))]
        return live.lease

    def _known_outcome(self, actor: str, lease_id: int) -> Outcome | None:
        """What a result is when its lease is not a live one of this actor, counted; None when it is."""
        live = self._leases.get(lease_id)
        if live is not None and live.actor == actor:
            return None
        if live is not None or not 0 <= lease_id < self._next_lease_id:
            self.tally.unknown += 1
            return Outcome.UNKNOWN
        outcome = self._ended.get(lease_id, Outcome.LATE)
        if outcome is Outcome.DUPLICATE:
            self.tally.duplicates += 1
        else:
            self.tally.late += 1
        return outcome
