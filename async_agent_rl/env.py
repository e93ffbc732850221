"""What an environment is: the contract between a world of tasks and the actor that plays it.

Knows nothing of models, tokens, sockets or any particular world. An environment of one's own is a class that
satisfies `World`, named in the configuration as `env=package.module:ClassName`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Protocol

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One thing to do. All members of a group play the same task."""

    split: Split
    index: int
    """In [0, world.num_tasks(split)). The same index is the same task in every process and every run."""
    seed: int
    """Seed of this episode's own randomness, if the environment has any; differs between group members."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Observation:
    """What the agent sees before it acts."""

    prompts: tuple[str, ...]
    """The complete user message, best first: later entries show less history. The actor sends the first one
    that fits the token budget. Never empty."""
    text: str
    """The page alone, as it is logged and, under `anchor=observation`, compared."""
    state_key: str
    """Equal keys mean the same true state of the same task: GiGPO's anchor (design, section 2)."""
    admissible: tuple[str, ...] = ()
    """Actions the environment accepts now; empty when any text is an action."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepResult:
    """What one response of the agent led to."""

    observation: Observation
    """The next observation; after `done` it is only logged."""
    reward: float
    """Training reward of this step."""
    done: bool
    action: str
    """The action that was read out of the response, as the environment understood it."""
    format_ok: bool = True
    """The response had the demanded form."""
    is_admissible: bool = True
    """The action was one the environment accepts in this state."""
    won: bool = False
    """The task is solved; counts as success in every report."""
    score: float = 0.0
    """Task score in [0, 1], reported, never trained on (WebShop: the raw reward)."""
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Anything else worth logging; plain JSON values."""


class Env(Protocol):
    """One episode at a time, owned by one coroutine. Never blocks the event loop.

    `reset` and `step` raise EnvError when the world broke (the episode is lost and played again elsewhere); any other
    exception is a bug and ends the process.
    """

    async def reset(self, task: Task) -> Observation: ...

    async def step(self, response: str) -> StepResult:
        """Takes the model's whole decoded response; reading the action out of it is the environment's business."""
        ...

    async def close(self) -> None: ...  # safe to call twice


class World(Protocol):
    """Everything the episodes of one process share. Built once per process as `World(options)`.

    `options` is the mapping under `env.options` of the configuration (for WebShop: under `env.webshop`). The
    constructor raises InputError for data a person has to mend. A world may have `world_id: str`, which names its data
    and is stored with every trajectory.
    """

    def __init__(self, options: Mapping[str, Any]) -> None: ...

    def num_tasks(self, split: Split) -> int: ...

    def new_env(self) -> Env: ...
