"""The shop's pages for a browser, and beside them what the agent is told.

Built from a session and its page; knows nothing of requests. A page can be inert: then nothing on it can be clicked.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from urllib.parse import urlencode

from async_agent_rl.env import SPLITS, Observation
from envs.webshop.pages import BACK, BUY, NEXT, PREVIOUS, Detail, Segment, SegmentKind
from envs.webshop.session import Session, View
from tools.webshop_play.frame import facts, pre
from tools.webshop_play.markup import Markup, element, join
from tools.webshop_play.purchase import explain, formula, wanted_product
from tools.webshop_play.visit import GoalList, Visit


@dataclasses.dataclass(frozen=True, slots=True)
class ShopPage:
    """One page of the shop as a form whose buttons carry actions."""

    session: Session
    inert: bool = False
    highlight: str | None = None
    """An action whose button is marked, for replays."""

    def render(self) -> Markup:
        """The page's own part, without task and frame."""
        view = self.session.view
        if view is View.SEARCH:
            return element("div", element("h1", "WebShop"), self._search_bar(), class_="start")
        if view is View.DONE:
            return self._done()
        content = {View.RESULTS: self._results, View.ITEM: self._item, View.DETAIL: self._detail}[view]
        return join(self._search_bar(), self._controls(), content())

    def _search_bar(self) -> Markup:
        keywords = self.session.keywords or ""
        is_searching = (self.highlight or "").startswith("search[")
        field = element(
            "input", type="search", name="query", value=keywords, aria_label="Search", placeholder="Search the shop",
            autocomplete="off", autofocus=not self.inert and self.session.view is View.SEARCH, disabled=self.inert,
        )  # fmt: skip
        mark = "highlight" if is_searching else None
        return element(
            "div", field, element("button", "Search", name="do", value="search", disabled=self.inert, class_=mark),
            class_="search", role="search",
        )  # fmt: skip

    def _controls(self) -> Markup:
        """The buttons above the content, in page order."""
        shown = (BACK, PREVIOUS, NEXT)
        buttons = [segment for segment in self.session.page.segments if segment in shown]
        return element("div", *(self._button(segment) for segment in buttons), class_="controls")

    def _results(self) -> Markup:
        start = f"Page {self.session.number} (Total results: "
        headline = next((s.text for s in self.session.page.segments if s.text.startswith(start)), "")
        cards = [
            element("li", self._button(asin, title or asin.text, "product"), element("p", asin.text, price))
            for asin, title, price in _cards(self.session.page.segments)
        ]
        nothing = element("p", "No product on this page.", class_="quiet")
        return join(element("h1", headline), element("ol", *cards, class_="cards") if cards else nothing)

    def _item(self) -> Markup:
        product = self.session.product
        assert product is not None  # the view ITEM is only entered with a product
        groups = [
            element(
                "fieldset",
                element("legend", group.name or "option"),
                *(
                    self._option(group.name, value)
                    for value in dict.fromkeys(group.values)
                    if value
                ),
            )
            for group in product.options
        ]  # fmt: skip
        labels = {detail.value for detail in Detail}
        details = [segment for segment in self.session.page.segments if segment.kind is SegmentKind.BUTTON]
        return element(
            "article",
            element("h1", product.title or product.asin),
            element("p", element("strong", product.price_text), f" · {product.asin} · Rating: N.A.", class_="price"),
            *groups,
            element("div", *(self._button(s) for s in details if s.text in labels), class_="controls"),
            element("p", self._button(BUY, class_="buy")),
        )

    def _detail(self) -> Markup:
        product, detail = self.session.product, self.session.detail
        assert product is not None  # the view DETAIL is only entered with a product
        assert detail is not None
        segments = self.session.page.segments
        texts = [segment.text for segment in segments[segments.index(PREVIOUS) + 1 :]]
        if not texts:
            content = element("p", f"No {detail.value.lower()} here.", class_="quiet")
        elif detail is Detail.DESCRIPTION:
            content = join(*(element("p", text, class_="text") for text in texts))
        else:
            content = element("ul", *(element("li", text.strip()) for text in texts))
        return element("article", element("h1", detail.value), element("p", product.title, class_="quiet"), content)

    def _done(self) -> Markup:
        session = self.session
        if session.reward is None or session.product is None:
            return join()
        bought = ", ".join(f"{name}: {value}" for name, value in session.options.items()) or "no options"
        return element(
            "article",
            element("h1", "Thank you for shopping with us!"),
            element(
                "p", "Score ", element("strong", f"{session.reward.total:.4g}", id="score"), " of 1", class_="score"
            ),
            facts(
                ("Bought", f"{session.product.asin}  {session.product.title} ({bought})"),
                ("Written for", wanted_product(session.goal)),
            ),
            bill(session),
            element("p", f"Reward = type × (attributes + options + price) = {formula(session.reward)}", class_="quiet"),
        )

    def _option(self, group: str, value: str) -> Markup:
        is_chosen = self.session.options.get(group) == value
        return self._button(Segment(value, SegmentKind.OPTION), pressed=is_chosen)

    def _button(
        self, segment: Segment, label: str | None = None, class_: str = "", *, pressed: bool | None = None
    ) -> Markup:
        action = f"click[{segment.text.lower()}]"
        classes = f"{class_} highlight" if action == self.highlight else class_
        return element(
            "button",
            segment.text if label is None else label,
            name="action",
            value=action,
            class_=classes.strip() or None,
            disabled=self.inert,
            aria_pressed=None if pressed is None else str(pressed).lower(),
        )


def _cards(segments: tuple[Segment, ...]) -> Iterator[tuple[Segment, str, str]]:
    """Asin, title and price of each product on a results page; a product without a title has an empty one."""
    starts = [place for place, segment in enumerate(segments) if segment.kind is SegmentKind.PRODUCT]
    for start, end in itertools.pairwise([*starts, len(segments)]):
        *title, price = [segment.text for segment in segments[start + 1 : end]] or [""]
        yield segments[start], " ".join(title), f" · {price}"


def bill(session: Session) -> Markup:
    """What the purchase was paid for, part by part."""
    rows = [
        element(
            "tr",
            element("th", part.name, scope="row"),
            element("td", element("ul", *(_wish(wish, is_met) for wish, is_met in part.details))),
            element("td", part.fulfilled),
            element("td", part.weight),
        )
        for part in explain(session)
    ]
    heads = ("part", "wish", "fulfilled", "weight")
    head = element("thead", element("tr", *(element("th", text, scope="col") for text in heads)))
    table = element("table", element("caption", "What the purchase is worth"), head, element("tbody", *rows), id="bill")
    return element("div", table, class_="scroll")


def _wish(wish: str, is_met: bool) -> Markup:
    mark = element("span", "✓ " if is_met else "✗ ", aria_label="met: " if is_met else "not met: ", role="img")
    return element("li", mark, wish, class_="met" if is_met else "unmet")


def visit_main(visit: Visit, visit_id: str, notice: str) -> Markup:
    """A page of a visit with the agent's view beside it."""
    where = f"{visit.split} task {visit.index} · {_steps(len(visit.steps))}"
    goal = element("section", element("p", where, class_="quiet"), element("p", visit.goal.instruction, id="goal"))
    told = element("p", notice, class_="notice", role="status") if notice else None
    step = element("input", type="hidden", name="step", value=len(visit.steps))
    ways = element(
        "form",
        element("input", type="hidden", name="split", value=visit.split),
        element("button", "Again", name="task", value=visit.index),
        element("button", "Next goal", name="task", value=visit.index + 1, class_="buy" if visit.done else None),
        method="post",
        action="/visits",
        class_="controls",
    )
    page = ShopPage(visit.session).render()
    if visit.done:
        shop = element("div", page, class_="page")
    else:
        shop = element("form", step, page, method="post", action=f"/visit/{visit_id}", class_="page")
    return element(
        "div",
        element("div", element("div", goal, ways, class_="task"), told, shop),
        agent_panel(visit, visit_id),
        class_="columns",
    )


def agent_panel(visit: Visit, visit_id: str) -> Markup:
    """Exactly what the agent sees."""
    raw = element(
        "form",
        element("input", type="hidden", name="step", value=len(visit.steps)),
        element("label", "Act as the agent does", for_="raw"),
        element("input", id="raw", name="action", placeholder="click[buy now]", autocomplete="off"),
        element("button", "Do it"),
        method="post",
        action=f"/visit/{visit_id}",
        class_="raw",
    )
    steps = [
        element("li", element("code", step.action), "" if step.is_admissible else " (not possible)")
        for step in visit.steps
    ]
    return element(
        "aside",
        element("h2", "What the agent sees"),
        None if visit.done else raw,
        observation_facts(visit.observation),
        element("h3", "Steps"),
        element("ol", *steps) if steps else element("p", "none yet", class_="quiet"),
        aria_label="What the agent sees",
    )


def observation_facts(observation: Observation) -> Markup:
    """The agent's view in its four forms."""
    actions = [element("li", element("code", action)) for action in observation.admissible]
    return join(
        element("h3", "Page as text"),
        pre(observation.text, "text"),
        element("h3", f"Admissible actions ({len(actions)})"),
        element("ul", *actions, class_="actions", data_what="admissible", tabindex="0"),
        element("h3", "State key"),
        pre(observation.state_key, "state-key"),
        element("h3", "Prompt"),
        pre(observation.prompts[0], "prompt"),
    )


def home_main(goals: GoalList, split: str, words: str, start: int, num_goals: int) -> Markup:
    """Goals to choose from."""
    options = [element("option", name, value=name, selected=name == split) for name in SPLITS]
    look = element(
        "form",
        element("label", "Split", for_="split"),
        element("select", *options, id="split", name="split"),
        element("label", "Words", for_="words"),
        element("input", type="search", id="words", name="words", value=words, placeholder="any goal"),
        element("button", "Find goals"),
        method="get",
        action="/",
        class_="look",
    )
    rows = [
        element("li", element("button", f"{hit.index}", name="task", value=hit.index), element("span", hit.instruction))
        for hit in goals.hits
    ]
    chosen = element("input", type="hidden", name="split", value=split)
    table = element("form", chosen, element("ul", *rows, class_="goals"), method="post", action="/visits")
    more = None
    if goals.next_index is not None:
        more = element("a", "More goals", href=_query(split, words, goals.next_index))
    return element(
        "section",
        element("h1", "Choose a goal"),
        element("p", f"{num_goals:,} {split} goals, from number {start}. A number starts a visit.", class_="quiet"),
        look,
        table if rows else element("p", "No goal here holds all of these words.", class_="quiet"),
        element("p", more) if more else None,
        class_="page",
    )


def _query(split: str, words: str, start: int) -> str:
    return "/?" + urlencode({"split": split, "words": words, "start": start})


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number} steps"
