"""Where an engine's time goes. Knows nothing of what the engine does."""

from __future__ import annotations

import enum
from collections.abc import Callable


class Occupation(enum.Enum):
    BUSY = "busy"
    NO_LEASE = "no_lease"
    ENVIRONMENT = "environment"


class IdleClock:
    """Adds up the seconds spent in each occupation; starts without a lease."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._seconds = dict.fromkeys(Occupation, 0.0)
        self._since_s = now_s()
        self.occupation = Occupation.NO_LEASE

    def switch(self, occupation: Occupation) -> None:
        now_s = self._now_s()
        self._seconds[self.occupation] += now_s - self._since_s
        self._since_s = now_s
        self.occupation = occupation

    def seconds(self, occupation: Occupation) -> float:
        """Up to now, the present stretch included."""
        running = self._now_s() - self._since_s if occupation is self.occupation else 0.0
        return self._seconds[occupation] + running
