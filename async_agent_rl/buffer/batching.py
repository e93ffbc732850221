"""The learner's side: its one request, parked until B complete groups are there, and what becomes of the batch.

Knows nothing of messages' bytes, actors or leases.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from async_agent_rl.buffer.admission import Admission, blocking_group, select_batch
from async_agent_rl.buffer.groups import GroupTable
from async_agent_rl.buffer.records import Drop, Group, GroupState
from async_agent_rl.errors import DropReason, ProtocolError

REDELIVERY_S = 5.0
"""A learner that asks again so soon after a delivery sent its repeat before the batch reached it."""
WAIT_REPORT_S = 30.0
"""A wait this long is reported, and again after as long."""


@dataclasses.dataclass
class ParkedRequest:
    peer: str
    version: int
    since_s: float
    next_report_s: float


@dataclasses.dataclass(frozen=True)
class Delivery:
    """A batch handed over: B complete groups in training order."""

    peer: str
    version: int
    groups: list[int]
    at_s: float
    waited_s: float


class BatchDesk:
    """Delivers each batch until it is trained or dropped, never two batches for one version."""

    def __init__(self, table: GroupTable, admission: Admission, order: Literal["lease", "ready"]) -> None:
        self._table = table
        self._admission = admission
        self._order = order
        self._parked: ParkedRequest | None = None
        self._last: Delivery | None = None
        self._select_again = False

    def look_again(self) -> None:
        """A group was completed or dropped: a batch may be possible now."""
        self._select_again = True

    def forget(self) -> None:
        """The learner started anew: it knows nothing of what was asked for or handed over."""
        self._parked = self._last = None

    def ask(self, peer: str, version: int, now_s: float) -> bool:
        """Park a request. False when it repeats one that waits, or whose batch was sent a moment ago.

        Raises:
            ProtocolError: the version is behind what was announced as trained.
        """
        if version < self._admission.version:
            raise ProtocolError(f"{peer}: asks for a batch for version {version} after {self._admission.version}")
        parked = self._parked
        is_waiting = parked is not None and (parked.peer, parked.version) == (peer, version)
        if is_waiting or self._is_on_its_way(peer, version, now_s):
            return False
        self._admission.refund_delivered()
        self._parked = ParkedRequest(peer, version, now_s, now_s + WAIT_REPORT_S)
        self._select_again = True
        return True

    def _is_on_its_way(self, peer: str, version: int, now_s: float) -> bool:
        last = self._last
        if last is None or (last.peer, last.version) != (peer, version) or now_s - last.at_s >= REDELIVERY_S:
            return False
        return all(self._table.find(number) is not None for number in last.groups)

    def deliver(self, now_s: float) -> tuple[Delivery | None, list[Group], list[Drop]]:
        """Hand over a batch if one is wanted and possible.

        Returns:
            The delivery with its groups in training order, or None and none; and the groups found too old on the way.
        """
        parked = self._parked
        if parked is None or not self._select_again:
            return None, [], []
        self._select_again = False
        selection = select_batch(
            self._table.groups,
            order=self._order,
            num_groups=self._admission.groups_per_update,
            version=max(parked.version, self._admission.version),
            max_staleness=self._admission.max_staleness,
        )
        drops = [self._table.drop(number, DropReason.TOO_STALE, now_s) for number in selection.too_stale]
        if selection.batch is None:
            return None, [], drops
        groups = self._table.deliver(selection.batch)
        self._parked = None
        self._last = Delivery(parked.peer, parked.version, selection.batch, now_s, now_s - parked.since_s)
        return self._last, groups, drops

    def drop(self, number: int, reason: DropReason, now_s: float) -> Drop | None:
        """The learner will not train on a group. None when it has ended already."""
        group = self._table.find(number)
        if group is None:
            return None
        # While it waits for a batch no update is under way that could consume the place.
        if group.state is GroupState.DELIVERED and self._parked is None:
            self._admission.drop_delivered(1)
        self._select_again = True
        return self._table.drop(number, reason, now_s)

    def train(self, version: int, numbers: Sequence[int]) -> list[int]:
        """The groups are part of the version. Returns the numbers that were not in the learner's hands.

        Raises:
            ProtocolError: the version does not grow; nothing is changed.
        """
        self._admission.advance(version)
        self._select_again = True
        return self._table.train(numbers)

    def long_wait(self, now_s: float) -> tuple[ParkedRequest, Group | None] | None:
        """The request that has waited for a while, and the group it waits for; None if it was reported lately."""
        parked = self._parked
        if parked is None or now_s < parked.next_report_s:
            return None
        parked.next_report_s = now_s + WAIT_REPORT_S
        return parked, blocking_group(
            self._table.groups, order=self._order, num_groups=self._admission.groups_per_update
        )
