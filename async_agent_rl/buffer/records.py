"""What the buffer keeps of a group while it lives, and the counts that remain of it afterwards.

Knows nothing of how they change: that is `groups`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Sequence

from async_agent_rl.errors import DropReason, FailureKind
from async_agent_rl.protocol import Frame


@dataclasses.dataclass(frozen=True, kw_only=True)
class Held:
    """A valid trajectory as it was received, kept until its group is trained or dropped."""

    frames: Sequence[Frame]
    oldest_version: int


class GroupState(enum.StrEnum):
    OPEN = "open"
    COMPLETE = "complete"
    DELIVERED = "delivered"
    """Complete and in the learner's hands; may be handed over again until it is trained."""


class Outcome(enum.StrEnum):
    """What a result that arrived turned out to be. All of them are acknowledged."""

    RECORDED = "recorded"
    DUPLICATE = "duplicate"
    """The lease had already ended by a result of its own."""
    LATE = "late"
    """The lease had ended without one: its group was dropped, or its actor was given up."""
    UNKNOWN = "unknown"
    """No such lease was granted to this actor."""


@dataclasses.dataclass
class Member:
    attempt: int = 0
    lease_id: int | None = None
    held: Held | None = None

    @property
    def is_waiting(self) -> bool:
        return self.lease_id is None and self.held is None


@dataclasses.dataclass
class Group:
    number: int
    task_index: int
    opened_s: float
    owner: str | None
    """Actor that is offered the members first; None when it was lost."""
    members: list[Member]
    state: GroupState = GroupState.OPEN
    completion: int = -1
    """Rank among all groups ever completed; -1 while open."""

    @property
    def is_complete(self) -> bool:
        return self.state is not GroupState.OPEN

    @property
    def num_waiting(self) -> int:
        return sum(member.is_waiting for member in self.members)

    @property
    def held(self) -> list[Held]:
        """Trajectories that are in, members ascending."""
        return [member.held for member in self.members if member.held is not None]


@dataclasses.dataclass
class Tally:
    """What was issued and how it ended, at each level. `duplicates` and `late` are results, not leases."""

    groups_issued: int = 0
    groups_trained: int = 0
    groups_dropped: Counter[DropReason] = dataclasses.field(default_factory=Counter)
    trajectories_trained: int = 0
    trajectories_dropped: Counter[DropReason] = dataclasses.field(default_factory=Counter)
    leases_issued: int = 0
    leases_finished: int = 0
    leases_failed: Counter[FailureKind] = dataclasses.field(default_factory=Counter)
    leases_expired: int = 0
    duplicates: int = 0
    late: int = 0
    unknown: int = 0


@dataclasses.dataclass(frozen=True)
class Drop:
    """A group that just ended untrained."""

    number: int
    task_index: int
    reason: DropReason
    age_s: float
    """Since its first lease."""
    num_held: int
    """Members that were in."""
