"""Earlier observations and actions in front of the current one: WebShop's `num_prev_obs` and `num_prev_actions`.

Knows nothing of prompts, where the memory of steps (envs/memory.py) is another thing.
"""

from __future__ import annotations

import collections

from envs.webshop.pages import SEPARATOR


class ObservationHistory:
    """The last observations and actions of one episode."""

    def __init__(self, num_observations: int, num_actions: int) -> None:
        """Keep at most so many of each; with 0 and 0 every observation stands alone."""
        self._observations: collections.deque[str] = collections.deque(maxlen=num_observations)
        self._actions: collections.deque[str] = collections.deque(maxlen=num_actions)

    def start(self, observation: str) -> str:
        """Forget everything; the first observation stands alone."""
        self._observations.clear()
        self._actions.clear()
        self._observations.append(observation)
        return observation

    def add(self, action: str, observation: str) -> str:
        """What the agent sees after `action` led to `observation`: oldest first, the observation last.

        The i-th last observation stands before the i-th last action, and this action is the last one.
        """
        self._actions.append(action)
        told: list[str] = []
        for back in range(max(len(self._observations), len(self._actions)), 0, -1):
            told += [kept[-back] for kept in (self._observations, self._actions) if len(kept) >= back]
        self._observations.append(observation)
        return SEPARATOR.join((*told, observation))
