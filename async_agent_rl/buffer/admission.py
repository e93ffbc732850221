"""When a new group may begin, and which groups make the next batch: the two rules that bound staleness.

Knows nothing of leases, actors, sockets or time.

Why the bound holds under `order=lease`: each version consumes B places in the order groups were leased. A group that
begins at version v while L groups are before it in that order is consumed at version v + L // B at the latest, and
L < (S + 1) * B is what admission asks. Its tokens are sampled at v or later, so it is at most S versions old.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from typing import Literal

from async_agent_rl.buffer.records import Group, GroupState
from async_agent_rl.errors import ProtocolError
from async_agent_rl.protocol import staleness


class Refusal(enum.StrEnum):
    """Why no new group may begin now."""

    STALENESS = "staleness"
    """The next group could be too old when its turn comes."""
    FINISHED = "finished"
    """Every group the run needs has begun."""


class Admission:
    """Counts places: group n (dropped ones refunded) takes place n, and update u consumes places u*B .. u*B + B - 1.

    The next place is derived from what lives, never from a counter of its own, so no path can forget a refund:
    `version * B` places are consumed, each live group holds one.
    """

    def __init__(self, *, groups_per_update: int, max_staleness: int, total_groups: int, version: int = 0) -> None:
        """
        Args:
            groups_per_update: B.
            max_staleness: S, as enforced (0 in sync mode).
            total_groups: places of the whole run.
            version: newest published version.
        """
        self.groups_per_update = groups_per_update
        self.max_staleness = max_staleness
        self._total_groups = total_groups
        self._version = version
        self._unsettled = 0

    @property
    def version(self) -> int:
        return self._version

    def next_place(self, num_live: int) -> int:
        """n of the group that would begin next.

        Args:
            num_live: groups that are neither trained nor dropped.
        """
        return self._version * self.groups_per_update + num_live + self._unsettled

    def openings(self, num_live: int) -> int:
        """How many groups may begin now: those with version >= n // B - S, and n < total."""
        first_refused = min((self._version + self.max_staleness + 1) * self.groups_per_update, self._total_groups)
        return max(0, first_refused - self.next_place(num_live))

    def refusal(self, num_live: int) -> Refusal | None:
        """Why `openings` is 0; None when it is not."""
        if self.next_place(num_live) >= self._total_groups:
            return Refusal.FINISHED
        return Refusal.STALENESS if self.openings(num_live) == 0 else None

    def drop_delivered(self, num_groups: int) -> None:
        """Groups of the batch the learner holds were dropped by it.

        Their places stay taken until the batch is settled: if the update happens without them, it consumes them.
        Refunding them now would let groups begin that this very update makes one version older.
        """
        self._unsettled += num_groups

    def refund_delivered(self) -> None:
        """The learner asks again at the same version: no update happened, the places are free."""
        self._unsettled = 0

    def advance(self, version: int) -> None:
        """An update is done: its B places are consumed.

        Raises:
            ProtocolError: the version does not grow.
        """
        if version <= self._version:
            raise ProtocolError(f"version {version} was announced as trained, but {self._version} already is")
        self._version = version
        self._unsettled = 0


@dataclasses.dataclass(frozen=True)
class Selection:
    batch: list[int] | None
    """B group numbers in training order, or None: not yet."""
    too_stale: list[int]
    """Groups that can never be trained: they hold a token too old for this version, and versions only grow."""


def select_batch(
    groups: Iterable[Group], *, order: Literal["lease", "ready"], num_groups: int, version: int, max_staleness: int
) -> Selection:
    """Choose the groups that the update from `version` to `version + 1` consumes.

    Args:
        groups: live groups, ascending. Delivered ones that were not trained come first again.
        order: lease: the lowest numbers, all of them complete. ready: those completed first.
        num_groups: B.
        version: of the weights that consume the batch.
        max_staleness: S; a group above it is never selected, under any order.
    """
    fit: list[Group] = []
    too_stale: list[int] = []
    for group in groups:
        is_too_stale = bool(group.held) and staleness(version, group.held) > max_staleness
        if is_too_stale:
            too_stale.append(group.number)
        else:
            fit.append(group)
    if order == "ready":
        fit = sorted((group for group in fit if group.is_complete), key=lambda group: group.completion)
    head = fit[:num_groups]
    if len(head) < num_groups or not all(group.is_complete for group in head):
        return Selection(None, too_stale)
    return Selection([group.number for group in head], too_stale)


def blocking_group(groups: Iterable[Group], *, order: Literal["lease", "ready"], num_groups: int) -> Group | None:
    """The first group a batch waits for; None when too few groups have begun."""
    if order == "ready":
        return next((group for group in groups if group.state is GroupState.OPEN), None)
    head = [group for group, _ in zip(groups, range(num_groups), strict=False)]
    return next((group for group in head if group.state is GroupState.OPEN), None)
