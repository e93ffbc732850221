"""WebShop as a Gymnasium environment: `gymnasium.make("async_agent_rl/WebShop-v0")` once this module is imported.

Observations and actions are texts as in the original environment (`search[red shoes]`, `click[buy now]`), and so is
the reward: the raw one in [0, 1]. Knows nothing of prompts and responses, which are env.py's business.
"""

from __future__ import annotations

import json
import operator
import string
import weakref
from collections.abc import Mapping
from typing import Any

from async_agent_rl.env import Split
from async_agent_rl.errors import InputError
from envs.webshop.env import WebShop
from envs.webshop.history import ObservationHistory
from envs.webshop.observation import observe
from envs.webshop.prompt import admissible_actions
from envs.webshop.session import Session

try:
    import gymnasium
except ImportError as error:
    raise ImportError("envs.webshop.gym needs Gymnasium; run `pip install 'async-agent-rl[gym]'`") from error

ENV_ID = "async_agent_rl/WebShop-v0"
MAX_ACTION_CHARS = 1_000
MAX_OBSERVATION_CHARS = 1 << 20

_worlds: weakref.WeakValueDictionary[str, WebShop] = weakref.WeakValueDictionary()
"""Worlds that some environment still holds, by their options: a vector of environments shares one catalogue."""


class AnyText(gymnasium.spaces.Text):
    """Texts of any characters up to a length. Gymnasium's own space wants them listed, which no catalogue can do."""

    def __init__(self, max_length: int) -> None:
        """Samples consist of printable ASCII characters."""
        super().__init__(max_length, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length


class WebShopGym(gymnasium.Env[str, str]):
    """One episode at a time. After a purchase it stands still until `reset`."""

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  Gymnasium declares it so

    def __init__(
        self,
        *,
        render_mode: str | None = None,
        split: Split = "train",
        options: Mapping[str, Any] | None = None,
        world: WebShop | None = None,
    ) -> None:
        """Open the shop; environments with equal options share one.

        Args:
            render_mode: `ansi` (`render` gives the page as text) or None.
            split: which goals `reset` draws from.
            options: keys of WebShopOptions, e.g. `{"mode": "text_rich", "num_prev_obs": 1}`; those of prompts have no
                effect here.
            world: an open shop to use instead of options.

        Raises:
            ConfigError: an option is unknown or wrong.
            InputError: the files need mending, or the split has no goal.
        """
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise InputError(f'render_mode={render_mode!r} is not offered by {ENV_ID}; use "ansi" or None')
        self.render_mode = render_mode
        self.world = world if world is not None else _shared_world(options or {})
        self.observation_space = AnyText(MAX_OBSERVATION_CHARS)
        self.action_space = AnyText(MAX_ACTION_CHARS)
        if self.world.num_tasks(split) == 0:
            raise InputError(f"{ENV_ID}: the {split} split has no goal here")
        self._split: Split = split
        self._history = ObservationHistory(self.world.options.num_prev_obs, self.world.options.num_prev_actions)
        self._session: Session | None = None
        self._number = 0
        self._is_done = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Open the search page for a goal.

        Args:
            seed: of the draws of goals that follow.
            options: `{"task": index}` plays that goal of the split (any integer, NumPy's too); without it the goal is
                drawn evenly. `{"split": ...}` looks in another split this once.

        Raises:
            InputError: there is no such task, or an option has another name.
        """
        super().reset(seed=seed)
        chosen = dict(options or {})
        split: Split = chosen.pop("split", self._split)
        task = chosen.pop("task", None)
        if chosen:
            raise InputError(f'{ENV_ID}: reset knows the options "task" and "split", got {sorted(chosen)}')
        if task is None:
            task = self.np_random.integers(self.world.num_tasks(split))
        self._number = self.world.goal_number(split, operator.index(task))
        self._session = self.world.session(self.world.goals[self._number], str(self._number))
        self._is_done = False
        return self._history.start(self._look(self._session)), self._describe(self._session)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Do one action; what is no action of the open page changes nothing and costs nothing.

        Returns:
            Observation, raw reward in [0, 1], whether something was bought, False, and the info: `catalog` (hash),
            `goal` (number), `instruction`, `admissible` (actions), `state_key`, `executed`, `won`, and after a purchase
            `verbose_info`.
        """
        session = self._session
        if session is None:
            raise gymnasium.error.ResetNeeded(f"{ENV_ID}: call reset() before step()")
        if self._is_done:
            return self._look(session), 0.0, True, False, {**self._describe(session), "executed": False, "won": False}
        outcome = session.act(action)
        self._is_done = outcome.done
        info = {**self._describe(session), "executed": outcome.executed, "won": outcome.done and outcome.reward == 1.0}
        if outcome.done and session.reward is not None:
            info["verbose_info"] = session.reward.verbose_info
        return self._history.add(action, self._look(session)), outcome.reward, outcome.done, False, info

    def render(self) -> str | None:
        """The open page as text in mode `ansi`."""
        return self._session.page.text if self.render_mode == "ansi" and self._session is not None else None

    def close(self) -> None:
        """Let go of the episode; safe to call twice."""
        self._session = None

    def _look(self, session: Session) -> str:
        return observe(session, self.world.options.mode)

    def _describe(self, session: Session) -> dict[str, Any]:
        return {
            "catalog": self.world.catalog_hash,
            "goal": self._number,
            "instruction": session.goal.instruction,
            "admissible": list(admissible_actions(session.page)),
            "state_key": session.state_key,
        }


def _shared_world(options: Mapping[str, Any]) -> WebShop:
    wanted = {"prompt": "plain", **options}
    key = json.dumps(wanted, sort_keys=True, default=str)
    world = _worlds.get(key)
    if world is None:
        world = _worlds[key] = WebShop(wanted)
    return world


# Gymnasium's own way: importing a module makes its environments known (`gymnasium.make("envs.webshop.gym:" + ENV_ID)`).
gymnasium.register(id=ENV_ID, entry_point="envs.webshop.gym:WebShopGym")
