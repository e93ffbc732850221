"""Search terms and BM25 ranking."""

from __future__ import annotations

import math

import pytest

from envs.webshop.bm25 import inverse_frequency, lossy_length
from envs.webshop.search import MAX_HITS, SearchIndex, document_text
from envs.webshop.tokens import STOP_WORDS, terms
from tests.webshop_samples import make_product


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Women's", ["women"]),
        ("women’s dresses", ["women", "dress"]),
        ("t-shirt", ["t", "shirt"]),
        ("3.1", ["3.1"]),
        ("1,000 x 2", ["1,000", "x", "2"]),
        ("10:30", ["10", "30"]),
        ("a1_navy", ["a1_navi"]),
        ("red, blue.", ["red", "blue"]),
        ("the shoes and IT", ["shoe"]),
        ("4K Ultra-HD", ["4k", "ultra", "hd"]),
        ("u.s. d'or", ["u.", "d'or"]),
        ("__ !? ™", []),
        ("x² café", ["x", "café"]),
        ("茶ok", ["茶", "ok"]),
        ("us as is", ["us"]),
    ],
)
def test_texts_break_into_terms_as_in_lucene(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


@pytest.mark.parametrize(
    ("word", "stem"),
    [
        ("relational", "relat"),
        ("hopping", "hop"),
        ("agreed", "agre"),
        ("generously", "gener"),
        ("sky", "sky"),
        ("ties", "ti"),
        ("possibly", "possibl"),
        ("sensibly", "sensibl"),
        ("analogy", "analog"),
        ("technologies", "technolog"),
        ("geology", "geologi"),
    ],
)
def test_stems_are_porters_with_his_later_rules(word: str, stem: str) -> None:
    assert terms(word) == [stem]


def test_there_are_33_stop_words() -> None:
    assert len(STOP_WORDS) == 33
    assert terms(" ".join(STOP_WORDS)) == []


@pytest.mark.parametrize(
    ("exact", "kept"),
    [
        (0, 0),
        (39, 39),
        (40, 40),
        (41, 40),
        (42, 42),
        (59, 56),
        (100, 96),
        (151, 144),
        (279, 264),
        (500, 472),
        (1000, 984),
    ],
)
def test_document_lengths_lose_low_bits_above_forty(exact: int, kept: int) -> None:
    assert lossy_length(exact) == kept


def test_a_document_is_title_description_first_bullet_and_options() -> None:
    product = make_product(
        title="Oak", description="Old", bullets=("First", "Second"), options={"size": ["S", "M"], "color": ["red"]}
    )
    assert document_text(product) == "oak old first size: s, m, and color: red"
    assert document_text(make_product(title="Oak")) == "oak   "


def test_scores_order_by_the_formula() -> None:
    # Lengths 1, 2, 3; mean 2; "oak" in all three, so shorter documents and repetitions come first.
    short, long, twice = (
        make_product("A", title="oak"),
        make_product("B", title="oak pine"),
        make_product("C", title="oak oak elm"),
    )
    index = SearchIndex((long, short, twice))

    def score(count: int, length: int) -> float:
        return inverse_frequency(3, 3) * count / (count + 0.9 * (1 - 0.4 + 0.4 * length / 2))

    expected = sorted([(score(1, 1), short), (score(1, 2), long), (score(2, 3), twice)], key=lambda pair: -pair[0])
    assert index.find("oak") == tuple(product for _, product in expected)
    assert index.find("oak")[0] is twice


def test_a_rare_term_outweighs_a_common_one_and_repetition_in_the_query_adds_up() -> None:
    assert inverse_frequency(3, 1) == pytest.approx(math.log(1 + 2.5 / 1.5))
    products = [make_product("A", title="oak"), make_product("B", title="oak"), make_product("C", title="elm")]
    index = SearchIndex(tuple(products))
    assert [hit.asin for hit in index.find("oak elm")] == ["C", "A", "B"]
    assert [hit.asin for hit in index.find("oak oak oak elm")] == ["A", "B", "C"]


def test_ties_go_to_the_smaller_asin_and_hits_end_at_fifty() -> None:
    index = SearchIndex([make_product(f"A{number:03}", title="oak") for number in reversed(range(60))])
    assert [hit.asin for hit in index.find("OAK tables")] == [f"A{number:03}" for number in range(MAX_HITS)]


@pytest.mark.parametrize("query", ["", " ", "the of", "zebra", "<r>", "<a>", "<c>", "<q>"])
def test_a_query_without_known_terms_finds_nothing(query: str) -> None:
    assert SearchIndex((make_product(),)).find(query) == ()


def test_an_index_of_wordless_products_finds_nothing() -> None:
    assert SearchIndex((make_product(title="!"),)).find("oak") == ()
