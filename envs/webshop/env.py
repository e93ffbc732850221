"""WebShop as a world of tasks: one shop per process, one session per episode.

Knows nothing of models or tokens. A step takes microseconds and never waits, except that the first purchase of a
product has its title read by spaCy (a few milliseconds).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from async_agent_rl.env import Observation, Split, StepResult, Task
from async_agent_rl.errors import InputError
from envs.memory import Memory
from envs.webshop.catalog import Reading
from envs.webshop.goals import Goal
from envs.webshop.history import ObservationHistory
from envs.webshop.noun_cache import CachedNounTagger
from envs.webshop.nouns import NounTagger, SpacyNounTagger
from envs.webshop.observation import observe
from envs.webshop.opening import goal_titles, open_catalog
from envs.webshop.options import WebShopOptions, parse_options
from envs.webshop.projection import project_like_verl_agent, project_strictly
from envs.webshop.prompt import admissible_actions, build_prompts, format_page
from envs.webshop.search import Searcher
from envs.webshop.session import Session, Shop
from envs.webshop.special import SpecialSearcher
from envs.webshop.splits import split_goals
from envs.webshop.store_build import CatalogFiles

log = structlog.get_logger()

MAX_READ_AHEAD = 20_000
"""Goal products whose titles are read before the first episode, a few milliseconds each; beyond that, none are."""
WIN_REWARD = 10.0
"""Training reward of a perfect purchase; anything else is worth 0 (verl-agent's rule)."""


class WebShop:
    """The catalogue, its goals in three splits, and the search index. Everything in it is read-only."""

    def __init__(self, options: Mapping[str, Any], *, tagger: NounTagger | None = None) -> None:
        """Load the files.

        Args:
            options: the keys of WebShopOptions.
            tagger: finds the nouns of titles; by default spaCy, loaded at the first `new_env` or purchase.

        Raises:
            ConfigError: an option is unknown or wrong.
            InputError: a file, a record or the spaCy model needs mending.
        """
        self.options = parse_options(options)
        self._has_read_ahead = False
        opened = open_catalog(
            CatalogFiles(self.options.products_path, self.options.attributes_path, self.options.human_goals_path),
            self.options.goals,
            cache=self.options.cache_path,
            store_above_bytes=self.options.store_above_mb << 20,
        )
        self.catalog = opened.catalog
        _report(self.catalog.reading)
        self.goals: Sequence[Goal] = opened.goals
        self._numbers = split_goals(self.goals, self.options.split, self.options.goals)
        searcher: Searcher = opened.searcher
        if self.options.special_queries:
            searcher = SpecialSearcher(searcher, self.catalog.products)
        self.shop = Shop(
            searcher=searcher,
            tagger=tagger or self._new_tagger(keep=opened.is_stored or self.options.cache is not None),
            results_per_page=self.options.results_per_page,
            show_attributes=self.options.show_attributes,
        )

    @property
    def catalog_hash(self) -> str:
        """Names the contents of the files: two worlds with the same hash and options have the same tasks."""
        return self.catalog.hash

    @property
    def world_id(self) -> str:
        """Stored with every trajectory."""
        return self.catalog_hash

    def num_tasks(self, split: Split) -> int:
        """Number of goals in the split; its first n are the split's fixed panel of n."""
        return len(self._numbers[split])

    def goal(self, split: Split, index: int) -> Goal:
        """The goal of a task; raises InputError where there is none."""
        return self.goals[self.goal_number(split, index)]

    def goal_number(self, split: Split, index: int) -> int:
        """A task's place in `goals`, the published order of all; raises InputError where there is no such task."""
        numbers = self._numbers[split]
        if not 0 <= index < len(numbers):
            raise InputError(
                f"task {index} of split {split} does not exist: WebShop has {len(numbers)} {split} goals here"
            )
        return numbers[index]

    def session(self, goal: Goal, session_id: str = "0") -> Session:
        """A plain, synchronous visit to the shop, for scripts and people; the id stands in the pages' addresses."""
        return Session(self.shop, goal, session_id)

    def new_env(self) -> WebShopEnv:
        """An environment for one episode at a time. The first call loads spaCy (a few seconds).

        Where the nouns of titles are kept on disk, the first call ever also reads those of the goals.
        """
        tagger = self.shop.tagger
        if isinstance(tagger, SpacyNounTagger | CachedNounTagger):
            tagger.load()
        if isinstance(tagger, CachedNounTagger) and not self._has_read_ahead:
            tagger.read_ahead(goal_titles(self.goals, MAX_READ_AHEAD))
            self._has_read_ahead = True
        return WebShopEnv(self)

    def _new_tagger(self, *, keep: bool) -> NounTagger:
        tagger = SpacyNounTagger(self.options.spacy_model)
        return CachedNounTagger(tagger, self.options.cache_path / "nouns", self.catalog.hash) if keep else tagger


class WebShopEnv:
    """Episodes in the shop; satisfies async_agent_rl.env.Env. After a purchase it stands still until `reset`."""

    def __init__(self, world: WebShop) -> None:
        self._world = world
        self._session: Session | None = None
        self._memory = Memory(world.options.history)
        self._history = ObservationHistory(world.options.num_prev_obs, world.options.num_prev_actions)
        self._shown = ""
        self._last: StepResult | None = None

    async def reset(self, task: Task) -> Observation:
        """Open the shop for a task; the task's seed is not used, because nothing in an episode is random."""
        number = self._world.goal_number(task.split, task.index)
        self._session = self._world.session(self._world.goals[number], str(number))
        self._memory = Memory(self._world.options.history)
        self._last = None
        self._shown = self._show(self._session)
        return self._observe(self._session, self._history.start(self._shown))

    async def step(self, response: str) -> StepResult:
        """Read one action out of the response and do it; a response without one changes nothing."""
        if self._session is None:
            raise RuntimeError("step() was called before reset()")
        if self._last is not None and self._last.done:
            return dataclasses.replace(self._last, reward=0.0, is_admissible=False)
        self._last = self._play(self._session, response)
        return self._last

    async def close(self) -> None:
        self._session = None

    def _play(self, session: Session, response: str) -> StepResult:
        project = project_strictly if self._world.options.parser == "strict" else project_like_verl_agent
        projection = project(response)
        outcome = session.act(projection.action)
        self._memory.add(self._shown, projection.action)
        info: dict[str, Any] = {"task_score": outcome.reward, "catalog": self._world.catalog_hash}
        if outcome.done and session.product is not None and session.reward is not None:
            parts = dataclasses.asdict(session.reward)
            info["purchase"] = {"asin": session.product.asin, "options": dict(session.options), "reward": parts}
            info["verbose_info"] = session.reward.verbose_info
        won = outcome.done and outcome.reward == 1.0
        if outcome.executed:
            self._shown = self._show(session)
        return StepResult(
            observation=self._observe(session, self._history.add(projection.action, self._shown)),
            reward=WIN_REWARD if won else 0.0,
            done=outcome.done,
            action=projection.action,
            format_ok=projection.format_ok,
            is_admissible=outcome.executed,
            won=won,
            score=outcome.reward,
            info=info,
        )

    def _show(self, session: Session) -> str:
        """The open page in the chosen mode. The quoted form of a text page is verl-agent's; `plain` has WebShop's."""
        options = self._world.options
        if options.mode == "text" and options.prompt != "plain":
            return format_page(session.page, session.goal.instruction)
        return observe(session, options.mode)

    def _observe(self, session: Session, with_history: str) -> Observation:
        options: WebShopOptions = self._world.options
        if options.prompt == "plain":
            prompts = tuple(dict.fromkeys((with_history, self._shown)))
        else:
            limit_chars = options.overflow == "chars13000"
            prompts = build_prompts(
                options.prompt,
                session.goal.instruction,
                session.page,
                self._memory,
                options.history,
                limit_chars=limit_chars,
                shown=self._shown,
            )
        return Observation(
            prompts=prompts,
            text=self._shown,
            state_key=session.state_key,
            admissible=admissible_actions(session.page),
        )


def _report(reading: Reading) -> None:
    """Say once which records of the files are not used as one may have meant them."""
    for counter, asin in reading.examples.items():
        log.warning(f"webshop_{counter.removeprefix('num_')}_products", num=getattr(reading, counter), first=asin)
