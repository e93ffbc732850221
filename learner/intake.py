"""A batch as it arrived, read and checked: B groups, each of exactly G members of one task.

Knows nothing of sockets, rows or models.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from async_agent_rl.errors import ProtocolError
from async_agent_rl.protocol import (
    FRAMES_PER_TRAJECTORY,
    Batch,
    BufferStats,
    Frame,
    Trajectory,
    read_trajectory,
    staleness,
)


@dataclasses.dataclass(frozen=True)
class Group:
    """One task's trajectories, members ascending."""

    number: int
    trajectories: Sequence[Trajectory]

    def staleness(self, version: int) -> int:
        """Updates between its oldest token and the weights of `version` that consume it."""
        return staleness(version, self.trajectories)


@dataclasses.dataclass(frozen=True)
class ReceivedBatch:
    """Complete groups in training order."""

    groups: Sequence[Group]
    stats: BufferStats

    @property
    def numbers(self) -> list[int]:
        return [group.number for group in self.groups]

    @property
    def trajectories(self) -> list[Trajectory]:
        return [trajectory for group in self.groups for trajectory in group.trajectories]


def read_batch(
    batch: Batch, frames: Sequence[Frame], num_groups: int, group_size: int, incarnation: int
) -> ReceivedBatch:
    """Read the trajectories behind a batch's header.

    Args:
        batch: the header.
        frames: all frames behind it.
        num_groups: B, as requested.
        group_size: G.
        incarnation: of this run; trajectories of another one come from weights that no longer exist.

    Raises:
        ProtocolError: not B different groups, or a group that has not exactly the members 0 .. G-1 of one task.
    """
    expected = num_groups * group_size * FRAMES_PER_TRAJECTORY
    if len(set(batch.groups)) != num_groups or batch.group_size != group_size or len(frames) != expected:
        raise ProtocolError(
            f"batch of groups {batch.groups} with {batch.group_size} members in {len(frames)} frames; "
            f"asked were {num_groups} different groups of {group_size} ({expected} frames)"
        )
    trajectories = [
        read_trajectory(frames[start : start + FRAMES_PER_TRAJECTORY])
        for start in range(0, len(frames), FRAMES_PER_TRAJECTORY)
    ]
    groups = [
        Group(number, trajectories[position * group_size : (position + 1) * group_size])
        for position, number in enumerate(batch.groups)
    ]
    for group in groups:
        _check_group(group, group_size, incarnation)
    return ReceivedBatch(groups, batch.stats)


def _check_group(group: Group, group_size: int, incarnation: int) -> None:
    headers = [trajectory.header for trajectory in group.trajectories]
    members = [header.member for header in headers]
    owners = {header.group for header in headers}
    tasks = {header.task_index for header in headers}
    if members != list(range(group_size)) or owners != {group.number} or len(tasks) != 1:
        raise ProtocolError(
            f"group {group.number} is not complete: members {members} of groups {sorted(owners)}, "
            f"tasks {sorted(tasks)}; it needs members 0..{group_size - 1} of one task"
        )
    foreign = {header.incarnation for header in headers} - {incarnation}
    if foreign:
        raise ProtocolError(
            f"group {group.number} holds trajectories of incarnation {foreign.pop()}, not {incarnation}"
        )
