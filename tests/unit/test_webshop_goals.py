"""Goals: texts, ceilings, order and the split by product."""

from __future__ import annotations

import collections
import random
from pathlib import Path

import pytest

from async_agent_rl.env import SPLITS
from async_agent_rl.errors import InputError
from envs.webshop.catalog import Catalog, HumanInstruction, Product
from envs.webshop.draws import unit_draw
from envs.webshop.goals import NO_CEILING, Goal, GoalOption, build_goals, draw_ceiling, split_by_product
from tests.webshop_samples import GOLDEN, load_golden_catalog, make_goal, make_product


def catalog_of(*products: Product) -> Catalog:
    return Catalog(products, {product.asin: product for product in products})


@pytest.mark.parametrize(
    ("price", "candidates"),
    [
        (99.99, {110, 120, 130}),
        (100.0, {120, 130, 140}),
        (0.0, {20, 30, 40}),
        (965.0, {980, 990}),
        (979.99, {990}),
        (980.0, {NO_CEILING}),
        (2721.34, {NO_CEILING}),
    ],
)
def test_a_ceiling_is_the_larger_of_two_of_the_next_four_grid_values(price: float, candidates: set[float]) -> None:
    assert {draw_ceiling(price, number) for number in range(200)} == candidates


def test_ceilings_come_with_chances_of_one_two_and_three_sixths() -> None:
    counts = collections.Counter(draw_ceiling(95.0, number) for number in range(6000))
    assert [round(counts[ceiling] / 1000) for ceiling in (110.0, 120.0, 130.0)] == [1, 2, 3]


def test_draws_are_told_apart_by_their_names() -> None:
    assert unit_draw("ab", "c") != unit_draw("a", "bc")
    assert unit_draw("a") == unit_draw("a")
    assert 0 <= unit_draw("a") < 1


def test_a_synthetic_goal_names_its_options_in_alphabetical_order() -> None:
    dress = make_product(
        options={"size": ["small", "large"], "color": ["black"]},
        price=55.0,
        instruction="Find me dresses",
        instruction_attributes=("daily wear", "polyester spandex"),
    )
    goals = build_goals(catalog_of(dress), "synthetic")
    ceiling = goals[0].price_ceiling
    assert {goal.instruction for goal in goals} == {
        f"Find me dresses with color: black, and size: {size}, and price lower than {ceiling:.2f} dollars"
        for size in ("small", "large")
    }
    assert {goal.options for goal in goals} == {
        (GoalOption("black", "color"), GoalOption(size, "size")) for size in ("small", "large")
    }
    assert {goal.price_ceiling for goal in goals} == {ceiling}


def test_a_synthetic_goal_without_options_and_above_the_grid_says_neither() -> None:
    screen = make_product(price=2721.34, instruction="Find me screens", instruction_attributes=("high definition",))
    goals = build_goals(catalog_of(screen), "synthetic")
    assert [(goal.instruction, goal.price_ceiling) for goal in goals] == [("Find me screens", NO_CEILING)]


def test_an_option_without_values_leaves_no_goal_and_repeated_values_repeat_the_goal() -> None:
    wish = {"instruction": "Find me", "instruction_attributes": ("solid wood",)}
    empty = make_product("A1", options={"size": [], "color": ["red"]}, **wish)
    twice = make_product("A2", options={"color": ["red", "red"]}, **wish)
    goals = build_goals(catalog_of(empty, twice, make_product("A3")), "synthetic")
    assert [goal.product.asin for goal in goals] == ["A2", "A2"]


def test_a_weight_is_the_mean_rarity_of_the_attributes() -> None:
    both = make_product("A1", instruction="x", instruction_attributes=("common", "rare"))
    one = make_product("A2", instruction="x", instruction_attributes=("common",))
    weights = {goal.product.asin: goal.weight for goal in build_goals(catalog_of(both, one), "synthetic")}
    assert weights == {"A1": 0.75, "A2": 0.5}


def test_a_human_goal_loses_outer_dots_and_one_without_attributes_is_skipped() -> None:
    records = (
        HumanInstruction("..i want a table.", ("solid wood",), ("red",)),
        HumanInstruction("skip me", (), ()),
    )
    (goal,) = build_goals(catalog_of(make_product(human_instructions=records)), "human")
    assert goal.instruction == f"i want a table, and price lower than {goal.price_ceiling:.2f} dollars"
    assert (goal.options, goal.weight) == ((GoalOption("red"),), 1.0)


def test_the_golden_human_goal_is_built_from_its_files(tmp_path: Path) -> None:
    (goal,) = build_goals(load_golden_catalog(tmp_path), "human")
    expected = GOLDEN["goal"]
    start = expected["instruction_text"].split(", and price")[0]
    assert goal.instruction == f"{start}, and price lower than {goal.price_ceiling:.2f} dollars"
    assert [option.value for option in goal.options] == expected["goal_options"]
    assert list(goal.attributes) == expected["attributes"]


@pytest.mark.parametrize("kind", ["synthetic", "human"])
def test_a_catalogue_without_goals_is_refused(kind: str) -> None:
    with pytest.raises(InputError, match=f"1 products gave no {kind} goal"):
        build_goals(catalog_of(make_product()), kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "start"),
    [
        (10, [5, 9, 0, 1, 4, 7, 6, 3, 8, 2]),
        (13, [11, 9, 5, 6, 0, 1, 4, 7, 3, 8, 2, 12, 10]),
        (6910, [3963, 2638, 2193, 1856, 4358, 6149, 2504, 3220, 705, 1072]),
    ],
)
def test_goals_stand_in_the_order_webshop_published(count: int, start: list[int]) -> None:
    sizes = [f"{number:05}" for number in range(count)]
    product = make_product(options={"size": sizes}, instruction="x", instruction_attributes=("solid wood",))
    goals = build_goals(catalog_of(product), "synthetic")
    assert [int(goal.options[0].value) for goal in goals[: len(start)]] == start


def many_goals(num_products: int, *, goals_each: int = 2) -> list[Goal]:
    products = [make_product(f"A{number}") for number in range(num_products)]
    return [make_goal(product) for _ in range(goals_each) for product in products]


@pytest.mark.parametrize("num_products", [3, 4, 10, 200])
def test_splits_share_no_product_and_none_is_empty(num_products: int) -> None:
    goals = many_goals(num_products)
    splits = split_by_product(goals)
    homes = [{goal.product.asin for goal in splits[split]} for split in SPLITS]
    assert all(homes)
    assert sum(map(len, homes)) == len(set.union(*homes)) == num_products
    assert sum(len(part) for part in splits.values()) == len(goals)


def test_splits_hold_seven_one_and_two_tenths_of_the_products() -> None:
    splits = split_by_product(many_goals(200, goals_each=1))
    assert [len(splits[split]) for split in SPLITS] == [140, 20, 40]


@pytest.mark.parametrize(("num_products", "sizes"), [(1, [1, 0, 0]), (2, [1, 0, 1])])
def test_too_few_products_leave_validation_empty_first(num_products: int, sizes: list[int]) -> None:
    splits = split_by_product(many_goals(num_products, goals_each=1))
    assert [len(splits[split]) for split in SPLITS] == sizes


def test_a_split_keeps_goal_order_and_does_not_depend_on_it() -> None:
    goals = many_goals(30)
    shuffled = random.Random(1).sample(goals, len(goals))
    there, back = split_by_product(goals), split_by_product(shuffled)
    for split in SPLITS:
        assert list(there[split]) == [goal for goal in goals if goal in there[split]]
        assert set(there[split]) == set(back[split])
