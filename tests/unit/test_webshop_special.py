"""Special queries: off by default, and without the original's crashes when on."""

from __future__ import annotations

import pytest

from envs.webshop.session import Session, Shop
from envs.webshop.special import SpecialSearcher
from tests.webshop_samples import FixedSearch, WordTagger, make_goal, make_product

PRODUCTS = [
    make_product(
        f"A{number}",
        category="garden" if number % 2 else "fashion",
        query="end tables" if number < 3 else "chairs",
        attributes=("solid wood", "solid wood") if number == 4 else (),
    )
    for number in range(120)
]


def find(query: str, num_products: int = 120) -> list[int]:
    searcher = SpecialSearcher(FixedSearch(PRODUCTS[7]), PRODUCTS[:num_products])
    return [PRODUCTS.index(product) for product in searcher.find(query)]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("<c> garden", list(range(1, 120, 2))),
        ("<c> garden tools", list(range(1, 120, 2))),
        ("<c>", []),
        ("<c> nothing", []),
        ("<q> end tables", [0, 1, 2]),
        ("<q> end", []),
        ("<q>", []),
        ("<a> solid wood", [4]),
        ("<a>", []),
        ("tables <c>", [7]),
        ("", [7]),
    ],
)
def test_special_queries_look_products_up_in_catalogue_order(query: str, found: list[int]) -> None:
    assert find(query) == found


def test_a_random_query_shows_fifty_products_the_same_each_time() -> None:
    assert len(set(find("<r>"))) == 50
    assert find("<r>") == find("<r>") != find("<r> again")


def test_a_random_query_in_a_small_catalogue_shows_all_of_it() -> None:
    assert sorted(find("<r>", num_products=5)) == [0, 1, 2, 3, 4]


def test_hits_of_a_category_fill_as_many_pages_as_they_need() -> None:
    shop = Shop(SpecialSearcher(FixedSearch(), PRODUCTS), WordTagger())
    session = Session(shop, make_goal(PRODUCTS[0]))
    assert session.act("search[<C> Garden]").page.texts[3] == "Page 1 (Total results: 60)"
    for _ in range(5):
        session.act("click[next >]")
    assert session.page.clickables[-1] == "a119"
