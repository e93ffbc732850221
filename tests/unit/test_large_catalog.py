"""The catalogue for measurements: as large, as varied and as skewed as it is meant to be."""

from __future__ import annotations

import collections
import itertools
import json
from pathlib import Path

import pytest

from async_agent_rl.errors import EXIT_BAD_INPUT, EXIT_OK
from envs.webshop.catalog import load_catalog
from envs.webshop.goals import build_goals
from envs.webshop.search import document_text
from envs.webshop.tokens import terms
from tools import make_catalog
from tools.large_catalog import NUM_WORDS, make_records, vocabulary

NUM_PRODUCTS = 5_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    assert make_catalog.main(["--products", str(NUM_PRODUCTS), "--out", str(folder)]) == EXIT_OK
    return folder


def test_there_are_more_than_fifty_thousand_stems() -> None:
    words = vocabulary(0)
    assert len(set(words)) == NUM_WORDS
    assert len({stem for word in words for stem in terms(word)}) >= 50_000


def test_the_hundred_commonest_stems_stand_in_one_product_of_twenty_each(folder: Path) -> None:
    counts: collections.Counter[str] = collections.Counter()
    for product in load_catalog(folder / "products.json", folder / "attributes.json").products:
        counts.update(set(terms(document_text(product))))
    ranked = [count for _, count in counts.most_common()]
    assert ranked[99] >= 0.05 * NUM_PRODUCTS
    # Zipf's law: ten times further down, about a tenth as often.
    assert 5 < ranked[199] / ranked[1999] < 20


def test_the_files_are_webshops_and_give_both_kinds_of_goals(folder: Path) -> None:
    catalog = load_catalog(
        folder / "products.json", folder / "attributes.json", folder / "human.json", require_attributes=True
    )
    assert len(catalog.products) == NUM_PRODUCTS
    assert len(build_goals(catalog, "human")) == 100
    assert len(build_goals(catalog, "synthetic")) > NUM_PRODUCTS
    assert {"name", "pricing", "customization_options"} <= set(json.loads((folder / "products.json").read_text())[0])


def test_the_first_products_do_not_depend_on_how_many_there_are() -> None:
    few = list(make_records(0, 3))
    assert list(itertools.islice(make_records(0, 4_001), 3)) == few
    assert list(make_records(1, 3)) != few


def test_asins_differ_and_have_no_order() -> None:
    asins = [raw["asin"] for raw, _ in make_records(0, 3_000)]
    assert len(set(asins)) == 3_000
    assert {len(asin) for asin in asins} == {10}
    assert asins != sorted(asins)


def test_a_large_catalogue_does_not_replace_the_embedded_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_catalog.main(["--products", "5000"]) == EXIT_BAD_INPUT
    assert "name a folder with --out" in capsys.readouterr().err
