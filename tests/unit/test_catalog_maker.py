"""The embedded catalogue: repeatable, large enough, and as hard as it is meant to be."""

from __future__ import annotations

import collections
import gzip
import itertools
import json
import pathlib

import pytest

from async_agent_rl.errors import EXIT_BAD_INPUT, EXIT_OK
from envs.webshop.env import WebShop
from envs.webshop.fuzzy import color_of, is_alike
from envs.webshop.options import EMBEDDED_CATALOG
from tools import make_catalog
from tools.catalog_words import BRANDS, CATEGORIES, COLORS
from tools.make_catalog import Product, make_products
from tools.shopper import Habits, ProductRule, Query, play


class LastWordIsTheNoun:
    """A tagger without a language model: good enough where titles end with the type."""

    def nouns(self, text: str) -> tuple[str, ...]:
        return (text.lower().split()[-1],)


@pytest.fixture(scope="module")
def world() -> WebShop:
    return WebShop({"results_per_page": 5}, tagger=LastWordIsTheNoun())


@pytest.fixture(scope="module")
def products() -> list[Product]:
    return make_products(seed=0, num_products=1020)


def share_of_wins(world: WebShop, habits: Habits, n: int = 300) -> float:
    return sum(play(world, world.goal("validation", index), habits) == 1.0 for index in range(n)) / n


def test_the_same_seed_gives_the_same_bytes(tmp_path: pathlib.Path) -> None:
    for name in ("one", "two"):
        assert make_catalog.main(["--seed", "5", "--products", "120", "--out", str(tmp_path / name)]) == EXIT_OK
    for file in ("products.json.gz", "attributes.json.gz"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_another_seed_gives_another_catalogue() -> None:
    assert make_products(1, 60)[0] != make_products(2, 60)[0]


def test_the_embedded_files_are_what_the_tool_makes(tmp_path: pathlib.Path) -> None:
    assert make_catalog.main(["--out", str(tmp_path)]) == EXIT_OK
    for file in ("products.json.gz", "attributes.json.gz"):
        # The text, not the bytes: another zlib may compress otherwise.
        assert gzip.decompress((tmp_path / file).read_bytes()) == gzip.decompress(
            (EMBEDDED_CATALOG / file).read_bytes()
        )


def test_gzip_headers_hold_no_date() -> None:
    assert (EMBEDDED_CATALOG / "products.json.gz").read_bytes()[4:8] == b"\0\0\0\0"


@pytest.mark.parametrize("count", ["59", "3001"])
def test_an_impossible_number_of_products_is_bad_input(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_catalog.main(["--products", count]) == EXIT_BAD_INPUT
    assert f"got {count}" in capsys.readouterr().err


def test_there_are_a_thousand_products_and_six_thousand_goals(world: WebShop) -> None:
    assert len(world.catalog.products) >= 1000
    assert sum(world.num_tasks(split) for split in ("train", "validation", "test")) >= 6000
    assert {product.category for product in world.catalog.products} == {
        "beauty",
        "electronics",
        "fashion",
        "garden",
        "grocery",
    }
    assert len({product.query for product in world.catalog.products}) == 60


def test_raw_products_keep_the_keys_of_webshop() -> None:
    raw = json.loads(gzip.decompress((EMBEDDED_CATALOG / "products.json.gz").read_bytes()))
    needed = {"asin", "category", "query", "product_category", "name", "full_description", "small_description"}
    assert all(needed | {"customization_options", "images", "pricing"} <= set(record) for record in raw)


def test_every_instruction_names_two_attributes_and_its_type(products: list[Product]) -> None:
    product = next(product for product in products if product.has_instruction)
    first, second = product.attributes[:2]
    assert product.instruction() == f"Find me {first}, {second} {product.type_name}"
    assert product.title() == f"{product.brand} {first} {second} {product.type_name}"


def test_held_out_products_use_only_words_seen_in_training(world: WebShop) -> None:
    def words(split: str) -> set[str]:
        goals = [world.goal(split, index) for index in range(world.num_tasks(split))]  # type: ignore[arg-type]
        return {word for goal in goals for word in f"{goal.product.title} {goal.instruction}".split()}

    # Prices are numbers; everything else must be known.
    assert {word for word in words("validation") - words("train") if word.isalpha()} == set()


def test_no_two_values_of_a_pool_are_the_same_to_the_reward() -> None:
    pools = [COLORS, *(sizes for category in CATEGORIES for _, sizes in category.types)]
    for pool in pools:
        for left, right in itertools.permutations(pool, 2):
            assert not is_alike(left, right)
            assert not is_alike(left, str(("size", right)))
    assert all(color_of(color) == color for color in COLORS)


def test_no_attribute_is_mistaken_for_another() -> None:
    for category in CATEGORIES:
        for left, right in itertools.permutations(category.attributes, 2):
            assert not is_alike(left, right)
            assert left not in right


def test_brands_and_attributes_share_no_word() -> None:
    words = {word for category in CATEGORIES for attribute in category.attributes for word in attribute.split()}
    assert not words & set(BRANDS)


def test_look_alikes_of_every_kind_exist(products: list[Product]) -> None:
    kinds: collections.Counter[str] = collections.Counter()
    by_type: dict[str, list[Product]] = collections.defaultdict(list)
    for product in products:
        by_type[product.type_name].append(product)
    for siblings in by_type.values():
        for one, other in itertools.combinations(siblings, 2):
            if one.attributes == other.attributes:
                same_options = (one.colors, one.sizes) == (other.colors, other.sizes)
                kinds["price" if same_options else "options"] += 1
            elif one.attributes[0] == other.attributes[0]:
                kinds["attribute"] += 1
    assert min(kinds["price"], kinds["options"], kinds["attribute"]) >= 20


def test_options_decide_whether_the_first_result_is_right(world: WebShop) -> None:
    first = Habits(product_rule=ProductRule.FIRST)
    assert share_of_wins(world, Habits(product_rule=ProductRule.FIRST, max_options=0)) < 0.05
    assert 0.1 < share_of_wins(world, Habits(product_rule=ProductRule.FIRST, max_options=1)) < 0.35
    assert 0.7 < share_of_wins(world, first) < 0.9


def test_a_vague_search_finds_almost_nothing_and_a_full_one_most(world: WebShop) -> None:
    assert share_of_wins(world, Habits(product_rule=ProductRule.FIRST, query=Query.FIRST_ATTRIBUTE)) < 0.05
    assert share_of_wins(world, Habits(product_rule=ProductRule.FIRST, query=Query.WORDS_AND_OPTIONS)) > 0.9


def test_every_goal_can_be_reached_from_the_first_page(world: WebShop) -> None:
    assert share_of_wins(world, Habits(product_rule=ProductRule.FITTING)) == 1.0
