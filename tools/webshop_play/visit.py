"""A person's visit to the shop: the very environment an actor plays, and the pages it stands on.

Knows nothing of terminals or browsers.
"""

from __future__ import annotations

import dataclasses

from async_agent_rl.env import Observation, Split, StepResult, Task
from envs.webshop.env import WebShop, WebShopEnv
from envs.webshop.goals import Goal
from envs.webshop.session import Session


@dataclasses.dataclass(frozen=True, slots=True)
class PlayedStep:
    """One action of the person and what came of it."""

    action: str
    """As the environment understood it."""
    is_admissible: bool
    reward: float
    """The training reward of this step."""


class Visit:
    """One episode played by hand. What the agent would be told comes from the environment itself; `session` is a twin
    that is given the same actions and shows how the shop's page is built."""

    def __init__(self, world: WebShop, env: WebShopEnv, split: Split, index: int, goal: Goal) -> None:
        """Use `open_visit`, which also resets the environment."""
        self._env = env
        self.split: Split = split
        self.index = index
        self.goal = goal
        self.session: Session = world.session(goal)
        self.steps: list[PlayedStep] = []
        self.last: StepResult | None = None
        self._first: Observation | None = None

    @property
    def observation(self) -> Observation:
        """What the agent sees now."""
        if self.last is not None:
            return self.last.observation
        assert self._first is not None  # open_visit sets it
        return self._first

    @property
    def done(self) -> bool:
        return self.last is not None and self.last.done

    async def start(self) -> None:
        """Back to the search page, with nothing done yet."""
        self._first = await self._env.reset(Task(split=self.split, index=self.index, seed=0))

    async def act(self, action: str) -> PlayedStep:
        """Do one action, given as the agent writes it between its action tags; any text is fine.

        After a purchase nothing happens any more: the step is not admissible and is not counted.
        """
        if self.done:
            return PlayedStep(action, is_admissible=False, reward=0.0)
        self.last = await self._env.step(f"<think>by hand</think><action>{action}</action>")
        self.session.act(self.last.action)
        step = PlayedStep(self.last.action, self.last.is_admissible, self.last.reward)
        self.steps.append(step)
        return step


async def open_visit(world: WebShop, split: Split, index: int) -> Visit:
    """Start a visit.

    Raises:
        InputError: the split has no such task.
    """
    goal = world.goal(split, index)  # first, because new_env may have to load the tagger
    visit = Visit(world, world.new_env(), split, index, goal)
    await visit.start()
    return visit


@dataclasses.dataclass(frozen=True, slots=True)
class GoalHit:
    """A goal found by its words."""

    index: int
    instruction: str


@dataclasses.dataclass(frozen=True, slots=True)
class GoalList:
    """Part of a split's goals."""

    hits: tuple[GoalHit, ...]
    next_index: int | None
    """Where to go on looking; None at the end of the split."""


_MOST_LOOKED_AT = 50_000
"""A split of the full catalogue has millions of goals."""


def find_goals(world: WebShop, split: Split, words: str = "", start: int = 0, most: int = 20) -> GoalList:
    """The next goals from `start` on whose instruction holds all the words."""
    wanted = words.lower().split()
    end = world.num_tasks(split)
    hits: list[GoalHit] = []
    index = max(start, 0)
    last = min(end, index + _MOST_LOOKED_AT)
    while index < last and len(hits) < most:
        instruction = world.goal(split, index).instruction
        if all(word in instruction.lower() for word in wanted):
            hits.append(GoalHit(index, instruction))
        index += 1
    return GoalList(tuple(hits), index if index < end else None)
