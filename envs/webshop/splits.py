"""Which goals train and which measure: our split by product, and the two in use elsewhere by goal number.

Goal numbers are places in the published order (goals.py). Knows nothing of pages or runs.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Iterable, Sequence
from typing import Literal

from async_agent_rl.env import Split
from async_agent_rl.errors import InputError
from envs.webshop.goal_table import StoredGoals
from envs.webshop.goals import Goal, GoalKind, homes_by_product

SplitRule = Literal["by_product", "paper", "verl_agent"]

_RANGES: dict[SplitRule, tuple[tuple[Split, int, int], ...]] = {
    "paper": (("test", 0, 500), ("validation", 500, 1500), ("train", 1500, 1501)),
    "verl_agent": (("validation", 0, 500), ("train", 500, 501)),
}
"""Split, first goal, and one behind the last; train goes on to the end and needs at least this one goal."""


def split_goals(goals: Sequence[Goal], rule: SplitRule, kind: GoalKind) -> dict[Split, Sequence[int]]:
    """Goal numbers by split, each in ascending order.

    Args:
        goals: all goals in the published order.
        rule: `by_product` shares no product between splits; `paper` is WebShop's own (test 0-499, validation 500-1499,
            train from 1500); `verl_agent` has validation 0-499, train from 500, and no test goals.
        kind: of the goals, for the message.

    Raises:
        InputError: the rule needs more goals than there are.
    """
    if rule == "by_product" and isinstance(goals, StoredGoals):
        return goals.split_by_product()
    if rule == "by_product":
        homes = homes_by_product({goal.product.asin for goal in goals})
        parts: dict[Split, list[int]] = {"train": [], "validation": [], "test": []}
        for number, goal in enumerate(goals):
            parts[homes[goal.product.asin]].append(number)
        return dict(parts)
    needed = _RANGES[rule][-1][2]
    if len(goals) < needed:
        layout = ", ".join(f"{split} from {start}" for split, start, _ in _RANGES[rule])
        raise InputError(
            f"env.webshop.split={rule} needs at least {needed} goals ({layout}), but these files give {len(goals)} "
            f"{kind} goals; use the whole catalogue, or env.webshop.split=by_product"
        )
    ranges: dict[Split, Sequence[int]] = {"train": range(0), "validation": range(0), "test": range(0)}
    ranges.update({split: range(start, end) for split, start, end in _RANGES[rule]})
    ranges["train"] = range(_RANGES[rule][-1][1], len(goals))
    return ranges


class WeightedDraw:
    """WebShop's random goal, with its slip: goal 0 never comes, and the last goal comes with the first one's share too.

    For comparisons with the original; nothing here draws goals this way unless asked to.
    """

    def __init__(self, weights: Iterable[float]) -> None:
        """Take the weights of all goals (`Goal.weight`), at least one, in order."""
        # The leading 0 is the slip: it moves every share one goal up.
        self._cumulative = [0.0, *itertools.accumulate(weights)]

    def draw(self, rng: random.Random) -> int:
        """A goal number; takes one number of the generator, so the original's own stream can be followed."""
        place = rng.uniform(0, self._cumulative[-1])
        return min(bisect.bisect_right(self._cumulative, place), len(self._cumulative) - 2)
