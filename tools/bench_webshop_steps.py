"""Times steps, resets and rewards of the embedded catalogue, and the original's steps over the same pages.

Every session is fresh and no page is kept from one to the next. Knows nothing of large catalogues.
"""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
import tracemalloc
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from async_agent_rl.env import Task
from envs.webshop.catalog import OptionGroup, Product
from envs.webshop.env import WebShop
from envs.webshop.reward import reward_purchase
from envs.webshop.search import Searcher
from envs.webshop.session import Session, Shop
from tools.webshop_original import OriginalSteps

ORIGINAL_RESULTS_MS = 23.0
ORIGINAL_ITEM_MS = 19.0
"""The original's own steps to a page of 10 products and to an item with 13 options, on two cores of a small server."""
_TOLERANCE = 0.5
_NUM_OPTIONS = (5, 8)
_NUM_ORIGINAL = 60
_NUM_OURS = 1_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """Medians in milliseconds."""

    original_results_ms: float
    original_item_ms: float
    results_ms: float
    """Ours, from a results page, the search included, which the original's figure leaves out."""
    item_ms: float
    env_step_ms: float
    """A step of the environment, with the prompts for the model."""
    reset_ms: float
    reward_ms: float
    num_sessions_left: int
    session_bytes: float

    @property
    def is_valid(self) -> bool:
        """The re-enactment takes as long as the original did, within half of it."""
        pairs = ((self.original_results_ms, ORIGINAL_RESULTS_MS), (self.original_item_ms, ORIGINAL_ITEM_MS))
        return all(abs(measured - known) <= _TOLERANCE * known for measured, known in pairs)

    @property
    def ratio(self) -> float:
        """Steps per second, ours over the original's, of as many results steps as item steps."""
        return (self.original_results_ms + self.original_item_ms) / (self.results_ms + self.item_ms)


class _Words:
    """Finds nouns without a language model."""

    def nouns(self, text: str) -> tuple[str, ...]:
        return tuple(text.split())


class _OneMore:
    """Puts the same product first, so that both sides open the same item page."""

    def __init__(self, searcher: Searcher, product: Product) -> None:
        self._searcher = searcher
        self._product = product

    def find(self, query: str) -> Sequence[Product]:
        return (self._product, *self._searcher.find(query)[:-1])


def measure_steps() -> StepFigures:
    """Measure; about 15 seconds."""
    world = WebShop({}, tagger=_Words())
    goals = [world.goal("train", number) for number in range(_NUM_OURS)]
    names = (("size", _NUM_OPTIONS[0]), ("color", _NUM_OPTIONS[1]))
    groups = tuple(OptionGroup(name, tuple(f"{name} {number}" for number in range(count))) for name, count in names)
    product = dataclasses.replace(world.catalog.products[0], options=groups)
    shop = Shop(searcher=_OneMore(world.shop.searcher, product), tagger=_Words())
    results_times, item_times, original_results, original_item = [], [], [], []
    for number, goal in enumerate(goals):
        action = f"search[{goal.instruction}]"
        session = Session(shop, goal)
        # A results page is opened from another one, as with `Next >`, so that both sides have one to read.
        session.act(action)
        results_times.append(_time(_step, session, action))
        item_times.append(_time(_step, session, f"click[{product.asin}]"))
        # In turns, so that whatever else the machine does slows both down.
        if number % (_NUM_OURS // _NUM_ORIGINAL) == 0:
            keywords, hits = goal.instruction.split(" "), shop.searcher.find(goal.instruction)
            pages = OriginalSteps("fgwxyznkvq", goal.instruction)
            pages.open_results(keywords, 1, len(hits), hits[:10])
            original_results.append(_time(pages.open_results, keywords, 1, len(hits), hits[:10]))
            original_item.append(_time(pages.open_item, keywords, 1, product, {}))
    num_left, size = _count_sessions(shop, world)
    return StepFigures(
        original_results_ms=statistics.median(original_results),
        original_item_ms=statistics.median(original_item),
        results_ms=statistics.median(results_times),
        item_ms=statistics.median(item_times),
        env_step_ms=_measure_env_steps(world),
        reset_ms=_measure_reset(world),
        reward_ms=statistics.median(_time(reward_purchase, goal.product, ("black",), goal, _Words()) for goal in goals),
        num_sessions_left=num_left,
        session_bytes=size,
    )


def _step(session: Session, action: str) -> object:
    """One step with what the original gives for it: the observation and what can be clicked."""
    page = session.act(action).page
    return page.text, page.clickables


def _measure_env_steps(world: WebShop) -> float:
    times = []
    for number in range(_NUM_OURS):
        env = world.new_env()
        _finish(env.reset(Task(split="train", index=number, seed=0)))
        text = world.goal("train", number).instruction
        response = f"<think>look</think><action>search[{text}]</action>"
        times.append(_time(_finish, env.step(response)))
    return statistics.median(times)


def _measure_reset(world: WebShop) -> float:
    env = world.new_env()
    tasks = [Task(split="train", index=number, seed=0) for number in range(_NUM_OURS)]
    return statistics.median(_time(_finish, env.reset(task)) for task in tasks)


def _count_sessions(shop: Shop, world: WebShop) -> tuple[int, float]:
    """Sessions that outlive their owner, of 1,000 at once, and the bytes of one of them while it lives."""
    goals = [world.goal("train", number) for number in range(1_000)]
    tracemalloc.start()
    sessions = [Session(shop, goal, str(number)) for number, goal in enumerate(goals)]
    for session in sessions:
        session.act(f"search[{session.goal.instruction}]")
    size = tracemalloc.get_traced_memory()[0] / len(sessions)
    tracemalloc.stop()
    ends = [weakref.ref(session.page) for session in sessions]
    del session, sessions
    gc.collect()
    return sum(end() is not None for end in ends), size


def _finish(coroutine: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("a step waited for something")


def _time(work: Callable[..., object], *arguments: Any) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    work(*arguments)
    return (time.perf_counter() - start) * 1e3
