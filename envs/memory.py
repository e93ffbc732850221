"""The short memory of an episode: what was seen and what was done about it, most recent last.

Shared by text worlds. Knows nothing of prompts or of any particular world.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One step of the past."""

    number: int
    """1-based step of the episode."""
    observation: str
    """What the agent saw before it acted."""
    action: str
    """What it did, as the world understood it."""


class Memory:
    """The last `capacity` steps, and how many there were in all."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._records: tuple[Record, ...] = ()
        self.num_steps = 0

    def add(self, observation: str, action: str) -> None:
        """Remember one step; the oldest is forgotten when there are more than the capacity."""
        self.num_steps += 1
        kept = (*self._records, Record(self.num_steps, observation, action))
        self._records = kept[max(len(kept) - self._capacity, 0) :]

    def last(self, num_records: int) -> tuple[Record, ...]:
        """At most `num_records` of the remembered steps, oldest first."""
        return self._records[max(len(self._records) - num_records, 0) :]
