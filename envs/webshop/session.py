"""One visit to the shop: the state machine behind the pages, played with WebShop's actions.

Plain and synchronous. Knows nothing of prompts, responses, tasks or training rewards.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Sequence

from envs.webshop.catalog import Product
from envs.webshop.goals import Goal
from envs.webshop.nouns import NounTagger
from envs.webshop.pages import (
    BACK,
    BUY,
    NEXT,
    PREVIOUS,
    Detail,
    Page,
    detail_page,
    done_page,
    item_page,
    results_page,
    search_page,
)
from envs.webshop.reward import Reward, reward_purchase
from envs.webshop.search import Searcher

_BACK, _PREVIOUS, _NEXT, _BUY = (button.text.lower() for button in (BACK, PREVIOUS, NEXT, BUY))
_DETAILS = {detail.value.lower(): detail for detail in Detail}


class View(enum.StrEnum):
    """Which kind of page is open."""

    SEARCH = "search"
    RESULTS = "results"
    ITEM = "item"
    DETAIL = "detail"
    DONE = "done"


@dataclasses.dataclass(frozen=True, slots=True)
class Shop:
    """What all sessions share."""

    searcher: Searcher
    tagger: NounTagger
    results_per_page: int = 10
    show_attributes: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What one action led to."""

    page: Page
    reward: float
    """The raw reward in [0, 1] when this action bought something, else 0."""
    done: bool
    """This action bought something."""
    executed: bool
    """The action was one the shop understands here; otherwise nothing changed."""


class Session:
    """One buyer with one goal. `act` takes any text; what is no action of the open page changes nothing."""

    __slots__ = (
        "__weakref__",
        "_hits",
        "_shop",
        "detail",
        "goal",
        "keywords",
        "number",
        "options",
        "page",
        "product",
        "reward",
        "session_id",
        "view",
        "visited",
    )

    goal: Goal
    page: Page
    view: View
    keywords: str | None
    """Of the last search, lower-cased; None on the search page."""
    number: int
    """Of the results page, 1-based; 0 on the search page."""
    product: Product | None
    options: dict[str, str]
    """Chosen value by group, in the order of choice."""
    detail: Detail | None
    reward: Reward | None
    """Of the last purchase, in parts."""
    session_id: str
    """Stands in the addresses of the pages; nothing else depends on it."""
    visited: set[str]
    """Asins opened since the search page was last open; mode `text_rich` marks them."""
    _shop: Shop
    _hits: Sequence[Product]

    def __init__(self, shop: Shop, goal: Goal, session_id: str = "0") -> None:
        """Open the search page."""
        self._shop = shop
        self.goal = goal
        self.session_id = session_id
        self.reward = None
        self._open_search()

    @property
    def state_key(self) -> str:
        """A canonical text of the true state: equal keys, equal futures. It holds no history and no counters."""
        asin = self.product.asin if self.product else None
        detail = self.detail.value if self.detail else None
        return json.dumps([self.view, self.keywords, self.number, asin, sorted(self.options.items()), detail])

    @property
    def num_hits(self) -> int:
        """Length of the hit list of the last search."""
        return len(self._hits)

    @property
    def shown(self) -> tuple[Product, ...]:
        """The products on the results page that is or was last open."""
        size = self._shop.results_per_page
        return tuple(self._hits[max(self.number - 1, 0) * size : self.number * size])

    @property
    def shows_attributes(self) -> bool:
        """Product pages lead to a page with the listed attributes."""
        return self._shop.show_attributes

    def act(self, action: str) -> Outcome:
        """Do one action: `search[words]` from any page, or `click[something on the page]`.

        The argument may be in any case; the name may not.
        """
        name, argument = parse_action(action)
        if name == "search" and argument is not None:
            self._search(argument)
        elif name == "click" and argument in self.page.clickables and argument != "search":
            if argument == _BUY and self.view is View.ITEM:
                return self._buy()
            self._click(argument)
        else:
            return Outcome(self.page, reward=0.0, done=False, executed=False)
        return Outcome(self.page, reward=0.0, done=False, executed=True)

    def _click(self, argument: str) -> None:
        """Follow a clickable of the open page. A button hides an option of the same text."""
        if argument == _BACK:
            self._open_search()
        elif self.view is View.RESULTS:
            if argument in (_NEXT, _PREVIOUS):
                self._open_results(self.number + (1 if argument == _NEXT else -1))
            else:
                self._open_item(next(hit for hit in self.shown if hit.asin.lower() == argument))
        elif self.view is View.DETAIL:
            self._show_item()
        elif argument == _PREVIOUS:
            self._open_results(self.number)
        elif argument in _DETAILS and self._offers(_DETAILS[argument]):
            self._open_detail(_DETAILS[argument])
        else:
            self._choose(argument)

    def _open_search(self) -> None:
        self.view = View.SEARCH
        self.keywords = None
        self.number = 0
        self._hits = ()
        self.visited = set()
        self._leave_item()
        self.page = search_page(self.goal.instruction)

    def _search(self, keywords: str) -> None:
        self.keywords = keywords
        self._hits = self._shop.searcher.find(keywords)
        self._open_results(1)

    def _open_results(self, number: int) -> None:
        self.view = View.RESULTS
        self.number = number
        self._leave_item()
        self.page = results_page(self.goal.instruction, number, self.num_hits, self.shown)

    def _open_item(self, product: Product) -> None:
        self.product = product
        self.visited.add(product.asin)
        self._show_item()

    def _show_item(self) -> None:
        self.view = View.ITEM
        self.detail = None
        self.page = item_page(self.goal.instruction, self._item(), show_attributes=self.shows_attributes)

    def _open_detail(self, detail: Detail) -> None:
        self.view = View.DETAIL
        self.detail = detail
        self.page = detail_page(self.goal.instruction, self._item(), detail)

    def _choose(self, value: str) -> None:
        # The same value in two groups can only be chosen in the last of them: WebShop's rule.
        group = next(group for group in reversed(self._item().options) if value in group.values)
        self.options[group.name] = value

    def _buy(self) -> Outcome:
        product = self._item()
        self.reward = reward_purchase(product, tuple(self.options.values()), self.goal, self._shop.tagger)
        self.view = View.DONE
        self.page = done_page(product.asin, self.options, self.reward.total)
        return Outcome(self.page, reward=self.reward.total, done=True, executed=True)

    def _leave_item(self) -> None:
        self.product = None
        self.options = {}
        self.detail = None

    def _offers(self, detail: Detail) -> bool:
        return self.shows_attributes or detail is not Detail.ATTRIBUTES

    def _item(self) -> Product:
        assert self.product is not None  # views ITEM and DETAIL are only entered with a product
        return self.product


def parse_action(action: str) -> tuple[str, str | None]:
    """The name and the lower-cased argument of an action text; (the whole text, None) where it has no such form.

    WebShop matches a regular expression from the start: anything, a bracket, anything, a closing bracket, both parts
    greedy and without line ends; what follows the last bracket is ignored. Two searches from the right find the same
    parts without the expression's quadratic worst case.
    """
    line = action.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 1, max(end - 1, 0))
    return (line[:start], line[start + 1 : end].lower()) if start > 0 else (action, None)
