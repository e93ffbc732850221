"""The shop's state machine and pages, against transcripts recorded from the original."""

from __future__ import annotations

import dataclasses
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.webshop.catalog import Product
from envs.webshop.pages import Detail, Page, Segment, SegmentKind, detail_page, done_page, item_page, results_page
from envs.webshop.session import Session, Shop, View, parse_action
from tests.webshop_samples import GOLDEN, FixedSearch, WordTagger, golden_session, make_goal, make_product


def open_session(*products: Product, **shop: Any) -> Session:
    products = products or (make_product(),)
    return Session(Shop(FixedSearch(*products), WordTagger(), **shop), make_goal(products[0]))


def test_the_recorded_text_transcript_is_reproduced(tmp_path: Path) -> None:
    session = golden_session(tmp_path)
    for step in GOLDEN["transcripts"]["text"]:
        if step["action"] is not None:
            outcome = session.act(step["action"])
            assert (outcome.reward, outcome.done) == (step["reward"], step["done"])
            assert outcome.page is session.page
        assert session.page.text == step["obs"]
        assert list(session.page.clickables) == step["available"]
        assert session.page.has_search_bar == step["has_search_bar"]


def test_the_recorded_reward_parts_are_reproduced(tmp_path: Path) -> None:
    session = golden_session(tmp_path)
    for step in GOLDEN["transcripts"]["text"][1:]:
        session.act(step["action"])
    assert session.reward is not None
    for key, expected in GOLDEN["verbose_info_after_buy"].items():
        assert getattr(session.reward, key) == expected


def test_clickables_of_all_transcripts_are_reproduced(tmp_path: Path) -> None:
    session = golden_session(tmp_path)
    for step in GOLDEN["transcripts"]["text_rich"][1:]:
        session.act(step["action"])
        assert list(session.page.clickables) == step["available"]


@pytest.mark.parametrize(
    ("action", "parsed"),
    [
        ("search[a]", ("search", "a")),
        ("search[a]]", ("search", "a]")),
        ("search[a[b]]", ("search[a", "b]")),
        ("search[]", ("search[]", None)),
        ("click", ("click", None)),
        ("", ("", None)),
        ("search[ ]", ("search", " ")),
        ("click[a] trailing", ("click", "a")),
        ("pre click[a]", ("pre click", "a")),
        ("think[x] click[buy now]", ("think[x] click", "buy now")),
        ("Search[X]", ("Search", "x")),
        (" search[x]", (" search", "x")),
        ("search[a\nb]", ("search[a\nb]", None)),
    ],
)
def test_actions_are_parsed_as_in_webshop(action: str, parsed: tuple[str, str | None]) -> None:
    assert parse_action(action) == parsed


@given(st.text(alphabet="[]ab \n", max_size=12))
def test_parsing_agrees_with_the_original_expression(action: str) -> None:
    match = re.match(r"(.+)\[(.+)\]", action)
    assert parse_action(action) == ((match[1], match[2]) if match else (action, None))


def test_a_long_row_of_brackets_is_parsed_at_once() -> None:
    start_s = time.perf_counter()
    assert parse_action("[" * 200_000)[1] is None
    assert time.perf_counter() - start_s < 1


@pytest.mark.parametrize(
    "action", ["search[]", "click", "", "Search[x]", " search[x]", "click[search]", "click[nope]", "click[ ]"]
)
def test_what_is_no_action_changes_nothing(action: str) -> None:
    session = open_session()
    page, key = session.page, session.state_key
    outcome = session.act(action)
    assert (outcome.page, outcome.reward, outcome.done, outcome.executed) == (page, 0.0, False, False)
    assert session.state_key == key


def test_a_blank_query_is_a_search(tmp_path: Path) -> None:
    session = open_session()
    assert session.act("search[ ]").executed
    assert (session.view, session.keywords) == (View.RESULTS, " ")


def test_the_listed_attributes_are_a_page_where_the_shop_offers_them() -> None:
    dress = make_product(
        attributes=("polyester spandex", "daily wear"),
        category="fashion",
        query="women's dresses",
        product_category="Clothing › Dresses",
    )
    session = open_session(dress, show_attributes=True)
    session.act("search[x]")
    page = session.act("click[a1]").page
    assert page.texts[-5:] == ("Description", "Features", "Reviews", "Attributes", "Buy Now")
    assert page.clickables[2:6] == ("description", "features", "reviews", "attributes")
    assert session.act("click[attributes]").page.text == (
        "Instruction: [SEP] find me a table [SEP] Back to Search [SEP] < Prev [SEP] polyester spandex [SEP] daily wear "
        "[SEP] fashion [SEP] women's dresses [SEP] Clothing › Dresses"
    )
    assert session.act("click[< prev]").page == page


def test_an_option_called_attributes_can_be_chosen_where_the_page_is_not_offered() -> None:
    session = open_session(make_product(options={"kind": ["attributes"]}))
    session.act("search[x]")
    session.act("click[a1]")
    assert session.act("click[attributes]").executed
    assert session.options == {"kind": "attributes"}


def test_search_works_from_every_page_and_clears_the_product() -> None:
    session = open_session(make_product(options={"size": ["s"]}))
    for action in ("search[x]", "click[a1]", "click[s]", "click[features]"):
        session.act(action)
    assert session.act("search[Y Z]").executed
    assert (session.view, session.keywords, session.number) == (View.RESULTS, "y z", 1)
    assert (session.product, session.options) == (None, {})


def test_one_can_shop_on_after_a_purchase() -> None:
    session = open_session()
    for action in ("search[x]", "click[a1]"):
        session.act(action)
    first = session.act("click[buy now]")
    assert (first.done, first.page.clickables) == (True, ())
    assert not session.act("click[back to search]").executed
    for action in ("search[x]", "click[a1]"):
        assert not session.act(action).done
    assert session.act("click[buy now]") == dataclasses.replace(first, page=session.page)


def test_a_product_with_an_asin_in_lower_case_can_be_opened() -> None:
    session = open_session(make_product("a1b"))
    session.act("search[x]")
    assert session.act("click[A1B]").executed
    assert session.product is not None


def test_choosing_again_replaces_and_going_back_to_the_results_forgets() -> None:
    session = open_session(make_product(options={"size": ["s", "m"], "color": ["red"]}))
    for action in ("search[x]", "click[A1]", "click[S]", "click[red]", "click[m]"):
        session.act(action)
    assert session.options == {"size": "m", "color": "red"}
    session.act("click[description]")
    session.act("click[< prev]")
    assert session.options == {"size": "m", "color": "red"}
    session.act("click[< prev]")
    assert (session.options, session.product, session.view) == ({}, None, View.RESULTS)


def test_the_same_value_in_two_groups_is_chosen_in_the_last() -> None:
    session = open_session(make_product(options={"top": ["none"], "base": ["none"]}))
    for action in ("search[x]", "click[a1]", "click[none]"):
        session.act(action)
    assert session.options == {"base": "none"}


def test_pages_of_results_slice_the_hits_and_never_end() -> None:
    session = open_session(*(make_product(f"A{number}") for number in range(5)), results_per_page=2)
    assert session.act("search[x]").page.texts[3:5] == ("Page 1 (Total results: 5)", "Next >")
    session.act("click[next >]")
    assert session.act("click[next >]").page.clickables == ("back to search", "< prev", "next >", "a4")
    assert session.act("click[next >]").page.texts[3:] == ("Page 4 (Total results: 5)", "< Prev", "Next >")
    session.act("click[< prev]")
    session.act("click[a4]")
    assert session.act("click[< prev]").page.clickables[-1] == "a4"


@pytest.mark.parametrize("query", ["<r>", "<a>", "<c>", "<c> fashion", "<q> x", "item_page done"])
def test_special_queries_are_plain_words(query: str) -> None:
    session = open_session()
    assert session.act(f"search[{query}]").executed
    assert (session.view, session.keywords) == (View.RESULTS, query)


def test_the_state_key_tells_states_apart_and_forgets_the_way() -> None:
    product = make_product(options={"size": ["s", "m"], "color": ["red"]})
    paths = [
        ["search[x]"],
        ["search[y]"],
        ["search[x]", "click[next >]"],
        ["search[x]", "click[a1]"],
        ["search[x]", "click[a1]", "click[s]"],
        ["search[x]", "click[a1]", "click[m]"],
        ["search[x]", "click[a1]", "click[s]", "click[features]"],
        ["search[x]", "click[a1]", "click[s]", "click[reviews]"],
        ["search[x]", "click[a1]", "click[s]", "click[buy now]"],
        [],
    ]

    def key(path: list[str]) -> str:
        session = open_session(product)
        for action in path:
            assert session.act(action).executed
        return session.state_key

    assert len({key(path) for path in paths}) == len(paths)
    item = ["search[x]", "click[a1]"]
    assert key([*item, "click[s]", "click[red]"]) == key(
        [*item, "click[red]", "click[features]", "click[< prev]", "click[s]"]
    )
    assert key([*item, "click[< prev]", "click[back to search]"]) == key([])


def test_empty_texts_give_no_segment_and_blank_ones_an_empty_segment() -> None:
    page = results_page("i", 1, 1, [make_product(title="", price_text="$1.0")])
    assert page.texts[-2:] == ("A1", "$1.0")
    blank = results_page("i", 1, 1, [make_product(title="  ", price_text="$1.0")])
    assert blank.texts[-3:] == ("A1", "", "$1.0")
    bullets = detail_page("i", make_product(bullets=("", "\n", " a\n b ")), Detail.FEATURES)
    assert bullets.texts[4:] == ("", "a\n b")
    assert item_page("i", make_product(options={"size": ["", "s"]}), show_attributes=False).texts[4:6] == ("size", "s")


def test_buttons_come_before_products_and_options_and_each_once() -> None:
    page = Page(
        (
            Segment("red", SegmentKind.OPTION),
            Segment("B1", SegmentKind.PRODUCT),
            Segment("Red", SegmentKind.BUTTON),
            Segment("red", SegmentKind.TEXT),
            Segment("blue", SegmentKind.OPTION),
        )
    )
    assert page.clickables == ("red", "b1", "blue")


def test_the_done_page_escapes_options_for_html() -> None:
    assert r'{"a\u0026b": "\u003cx\u003e \u0027q\u0027"}' in done_page("A1", {"a&b": "<x> 'q'"}, 0.5).texts
    assert "0.5" in done_page("A1", {}, 0.5).texts
