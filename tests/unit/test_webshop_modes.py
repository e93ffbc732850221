"""The observation modes: recorded transcripts, HTML against text, addresses, histories."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import bs4
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.webshop.address import address
from envs.webshop.catalog import Product
from envs.webshop.env import WebShop
from envs.webshop.goals import GoalOption
from envs.webshop.history import ObservationHistory
from envs.webshop.html import render_html
from envs.webshop.observation import ObservationMode, observe
from envs.webshop.pages import SEPARATOR
from envs.webshop.session import Session, Shop, View
from tests.webshop_samples import (
    GOLDEN,
    REAL_OPTIONS,
    FixedSearch,
    WordTagger,
    golden_session,
    make_goal,
    make_product,
    needs_real_data,
)

_IGNORED_PARENTS = {"style", "script", "head", "title", "meta", "[document]"}


def open_session(*products: Product, instruction: str = "find me a table", **shop: Any) -> Session:
    products = products or (make_product(),)
    goal = make_goal(products[0], instruction=instruction)
    return Session(Shop(FixedSearch(*products), WordTagger(), **shop), goal, session_id="7")


def text_nodes(document: str) -> list[bs4.NavigableString]:
    """The nodes WebShop reads from a page: visible ones that are more than a line break."""
    nodes = bs4.BeautifulSoup(document, "html.parser").find_all(string=True)
    return [
        node
        for node in nodes
        if node.parent.name not in _IGNORED_PARENTS and not isinstance(node, bs4.Comment) and node != "\n"
    ]


def read_text(document: str) -> str:
    """WebShop's rule for mode `text`."""
    return SEPARATOR.join(node.strip() for node in text_nodes(document))


def read_rich(document: str, url: str, visited: set[str]) -> str:
    """WebShop's rule for mode `text_rich`."""
    observation = ""
    for node in text_nodes(document):
        parent = node.parent
        assert parent is not None
        line = str(node)
        if parent.name == "button":
            line = f"[button] {node} [button_]"
        elif parent.name == "label":
            word = "clicked button" if f'"{node}"' in url else "button"
            line = f"  [{word}] {node} [{word}_]"
            if word == "clicked button":
                observation = f"You have clicked {node}.\n{observation}"
        elif parent.get("class") == ["product-link"]:
            word = "clicked button" if node in visited else "button"
            line = f"\n[{word}] {node} [{word}_]"
        observation += f"{line}\n"
    return observation


@pytest.mark.parametrize("mode", ["text", "text_rich"])
def test_the_recorded_transcripts_are_reproduced(mode: ObservationMode, tmp_path: Path) -> None:
    session = golden_session(tmp_path)
    steps = GOLDEN["transcripts"][mode]
    assert len(steps) == 38
    for step in steps:
        if step["action"] is not None:
            outcome = session.act(step["action"])
            assert (outcome.reward, outcome.done) == (step["reward"], step["done"])
        assert observe(session, mode) == step["obs"]
        assert list(session.page.clickables) == step["available"]


def test_the_recorded_addresses_are_reproduced(tmp_path: Path) -> None:
    session = golden_session(tmp_path)
    for step in GOLDEN["transcripts"]["text"]:
        if step["action"] is not None:
            session.act(step["action"])
        assert observe(session, "url") == step["url"]


def test_the_html_of_the_recorded_pages_reads_as_the_recorded_texts(tmp_path: Path) -> None:
    session = golden_session(tmp_path)
    for text, rich in zip(GOLDEN["transcripts"]["text"], GOLDEN["transcripts"]["text_rich"], strict=True):
        if text["action"] is not None:
            session.act(text["action"])
        document = observe(session, "html")
        assert read_text(document) == text["obs"]
        assert read_rich(document, text["url"], session.visited) == rich["obs"]


_TEXTS = st.text(
    alphabet=st.one_of(
        st.sampled_from(" \t\n\r\f\v\u00a0&<>\"'/!-=;#aB1\u0130"), st.characters(exclude_categories=["Cs"])
    ),
    max_size=12,
)


@st.composite
def strange_products(draw: st.DrawFn) -> Product:
    groups = draw(st.dictionaries(_TEXTS, st.lists(_TEXTS, max_size=4), max_size=3))
    return make_product(
        draw(st.sampled_from(["B0TEST0001", "A<&>"])),
        title=draw(_TEXTS),
        description=draw(_TEXTS),
        bullets=tuple(draw(st.lists(_TEXTS, max_size=4))),
        # Options are stored as the loader leaves them.
        options={
            name.lower(): [value.strip().replace("/", " | ").lower() for value in values]
            for name, values in groups.items()
        },
        attributes=tuple(draw(st.lists(_TEXTS, max_size=2))),
        category=draw(_TEXTS),
        product_category=draw(_TEXTS),
    )


@settings(max_examples=150, deadline=None)
@given(strange_products(), _TEXTS, _TEXTS, st.booleans(), st.data())
def test_html_reads_as_text_whatever_the_products_say(
    product: Product, instruction: str, query: str, show_attributes: bool, data: st.DataObject
) -> None:
    session = open_session(product, instruction=instruction, show_attributes=show_attributes)
    for action in ("", f"search[{query} x]", "click[next >]", "click[< prev]", f"click[{product.asin}]", *["?"] * 6):
        if action == "?":
            choices = [argument for argument in session.page.clickables if argument != "back to search"]
            action = f"click[{data.draw(st.sampled_from(choices or ['x']))}]"
        session.act(action)
        document = render_html(session)
        assert read_text(document) == session.page.text
        assert read_rich(document, address(session), session.visited) == observe(session, "text_rich")


def test_html_offers_what_the_text_offers(tmp_path: Path) -> None:
    session = golden_session(tmp_path)
    for action in ("search[trail]", "click[b0test0001]", "click[red]"):
        session.act(action)
    soup = bs4.BeautifulSoup(render_html(session), "html.parser")
    buttons = [button.text.lower() for button in soup.find_all("button")]
    options = [str(label["value"]) for label in soup.find_all("input", type="radio")]
    assert (*buttons, *options) == session.page.clickables
    assert [str(checked["value"]) for checked in soup.find_all("input", checked=True)] == ["red"]
    (target,) = [str(option["data-url"]) for option in soup.find_all("input", value="9")]
    session.act("click[9]")
    assert target == address(session)


def test_a_quoted_search_word_marks_an_option_that_was_not_chosen() -> None:
    session = open_session(make_product(options={"color": ["red", "blue"]}))
    for action in ('search["red" shoes]', "click[a1]"):
        session.act(action)
    assert observe(session, "text_rich").startswith("You have clicked red.\nInstruction:")
    assert "[clicked button] red [clicked button_]" in observe(session, "text_rich")
    assert session.options == {}


@pytest.mark.parametrize("value", ["café", 'the "best"', "back\\slash"])
def test_options_that_json_escapes_never_show_as_clicked(value: str) -> None:
    session = open_session(make_product(options={"color": [value]}))
    for action in ("search[x]", "click[a1]", f"click[{value}]"):
        assert session.act(action).executed
    assert session.options == {"color": value}
    assert "clicked" not in observe(session, "text_rich")


def test_visited_products_are_marked_until_the_search_page_opens() -> None:
    session = open_session()
    for action in ("search[x]", "click[a1]", "search[y]"):
        session.act(action)
    assert "\n[clicked button] A1 [clicked button_]\n" in observe(session, "text_rich")
    session.act("click[back to search]")
    session.act("search[y]")
    assert "\n[button] A1 [button_]\n" in observe(session, "text_rich")


def test_blanks_of_a_query_stay_in_the_address() -> None:
    session = open_session()
    session.act("search[a  b ]")
    assert observe(session, "url") == "http://127.0.0.1:3000/search_results/7/a++b+/1"
    assert session.view is View.RESULTS


@pytest.mark.parametrize(
    ("num_observations", "num_actions", "expected"),
    [
        (0, 0, "o3"),
        (1, 0, "o2 o3"),
        (0, 1, "a3 o3"),
        (1, 1, "o2 a3 o3"),
        (2, 2, "o1 a2 o2 a3 o3"),
        (1, 3, "a1 a2 o2 a3 o3"),
        (9, 9, "o0 a1 o1 a2 o2 a3 o3"),
    ],
)
def test_histories_put_the_oldest_first(num_observations: int, num_actions: int, expected: str) -> None:
    history = ObservationHistory(num_observations, num_actions)
    history.add("old action", history.start("old"))
    assert history.start("o0") == "o0"
    seen = ""
    for number in (1, 2, 3):
        seen = history.add(f"a{number}", f"o{number}")
    assert seen == expected.replace(" ", SEPARATOR)


@needs_real_data
def test_the_real_dress_is_shown_as_the_original_shows_it() -> None:
    dress = WebShop(REAL_OPTIONS, tagger=WordTagger()).catalog.by_asin["B08ZRR3DZT"]
    wish = "Find me women's dresses with polyester spandex for daily wear with color: black, and size: small, and price"
    wish += " lower than 60.00 dollars"
    options = (GoalOption("black", "color"), GoalOption("small", "size"))
    goal = make_goal(dress, instruction=wish, attributes=dress.instruction_attributes, options=options)
    goal = dataclasses.replace(goal, price_ceiling=60.0)
    session = Session(Shop(FixedSearch(dress), WordTagger(), show_attributes=True), goal)
    assert session.page.text == f"WebShop [SEP] Instruction: [SEP] {wish} [SEP] Search"
    session.act("search[black one shoulder bodycon dress]")
    assert session.page.text == (
        f"Instruction: [SEP] {wish} [SEP] Back to Search [SEP] Page 1 (Total results: 1) [SEP] Next > [SEP] B08ZRR3DZT "
        "[SEP] SheIn Women's Sexy One Shoulder Sleeveless Cutout Mini Club Pencil Bodycon Dress [SEP] $19.99 to $27.99"
    )
    for action in ("click[b08zrr3dzt]", "click[medium]", "click[red]"):
        session.act(action)
    lines = observe(session, "text_rich").splitlines()
    assert lines[:8] == [
        "You have clicked red.",
        "You have clicked medium.",
        "Instruction:",
        wish,
        "[button] Back to Search [button_]",
        "[button] < Prev [button_]",
        "size",
        "  [button] x-small [button_]",
    ]
    assert lines[9] == "  [clicked button] medium [clicked button_]"
    for sub_page in ("description", "reviews"):
        session.act(f"click[{sub_page}]")
        assert session.page.text == f"Instruction: [SEP] {wish} [SEP] Back to Search [SEP] < Prev"
        session.act("click[< prev]")
    assert session.act("click[attributes]").page.texts[4:] == (
        "polyester spandex",
        "daily wear",
        "fashion",
        "women's dresses",
        "Clothing, Shoes & Jewelry › Women › Clothing › Dresses › Club & Night Out",
    )
    for action in ("click[< prev]", "click[small]", "click[black]"):
        session.act(action)
    outcome = session.act("click[buy now]")
    assert (outcome.reward, outcome.done) == (1.0, True)
    assert session.page.texts[4:9] == (
        "Purchased",
        "asin",
        "B08ZRR3DZT",
        "options",
        '{"color": "black", "size": "small"}',
    )


def test_html_names_no_picture_and_no_foreign_address(tmp_path: Path) -> None:
    session = golden_session(tmp_path)
    for step in GOLDEN["transcripts"]["text"][1:]:
        session.act(step["action"])
        document = render_html(session)
        assert "<img" not in document
        assert set(re.findall(r"https?://[^/\"]+", document)) <= {"http://127.0.0.1:3000"}
