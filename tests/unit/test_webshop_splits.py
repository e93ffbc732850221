"""Goal numbers by split, the published order of human goals, and WebShop's weighted draw."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from async_agent_rl.env import SPLITS
from async_agent_rl.errors import InputError
from envs.webshop.env import WebShop
from envs.webshop.splits import WeightedDraw, split_goals
from tests.webshop_samples import (
    CASES,
    REAL_OPTIONS,
    WordTagger,
    make_goal,
    make_product,
    needs_real_data,
    raw_product,
    write_files,
)


def goals_of(*products_of_goals: int) -> list[Any]:
    """A goal for each number, of the product with that number."""
    products = {number: make_product(f"A{number}") for number in products_of_goals}
    return [make_goal(products[number]) for number in products_of_goals]


def test_the_papers_split_is_five_hundred_a_thousand_and_the_rest() -> None:
    numbers = split_goals(goals_of(*[0] * 1700), "paper", "human")
    assert numbers == {"test": range(500), "validation": range(500, 1500), "train": range(1500, 1700)}


def test_verl_agents_split_has_no_test_goals() -> None:
    numbers = split_goals(goals_of(*[0] * 501), "verl_agent", "synthetic")
    assert numbers == {"validation": range(500), "train": range(500, 501), "test": range(0)}


@pytest.mark.parametrize(
    ("rule", "count", "message"),
    [
        (
            "paper",
            13,
            "env.webshop.split=paper needs at least 1501 goals (test from 0, validation from 500, train from 1500), "
            "but these files give 13 human goals; use the whole catalogue, or env.webshop.split=by_product",
        ),
        (
            "verl_agent",
            500,
            "env.webshop.split=verl_agent needs at least 501 goals (validation from 0, train from 500), but these "
            "files give 500 human goals; use the whole catalogue, or env.webshop.split=by_product",
        ),
    ],
)
def test_a_split_larger_than_the_goals_is_refused_with_the_count(rule: Any, count: int, message: str) -> None:
    with pytest.raises(InputError) as caught:
        split_goals(goals_of(*[0] * count), rule, "human")
    assert str(caught.value) == message


def test_the_split_by_product_shares_no_product_and_keeps_the_order() -> None:
    goals = goals_of(*range(30), *range(30))
    numbers = split_goals(goals, "by_product", "synthetic")
    assert sorted(itertools.chain(*numbers.values())) == list(range(60))
    homes = [{goals[number].product.asin for number in numbers[split]} for split in SPLITS]
    assert len(set.union(*homes)) == sum(map(len, homes)) == 30
    assert all(list(part) == sorted(part) for part in numbers.values())


def test_a_world_numbers_its_tasks_by_the_published_order(tmp_path: Path) -> None:
    sizes = {"Size": [{"value": str(number)} for number in range(600)]}
    entry = {"attributes": ["solid wood"], "instruction": "Find me", "instruction_attributes": ["solid wood"]}
    files = write_files(tmp_path, [raw_product("A1", customization_options=sizes)], {"A1": entry})
    world = WebShop({**files, "split": "verl_agent"}, tagger=WordTagger())
    assert [world.num_tasks(split) for split in SPLITS] == [100, 500, 0]
    assert world.goal("train", 7) is world.goals[507]
    assert world.goal_number("validation", 7) == 7
    with pytest.raises(InputError, match="these files give 600 synthetic goals"):
        WebShop({**files, "split": "paper"}, tagger=WordTagger())


def test_the_weighted_draw_follows_the_recorded_one() -> None:
    case = CASES["random_idx"]
    rng = random.Random(case["python_random_seed"])
    weights = [rng.randint(0, 10) for _ in range(50)]
    assert weights == case["weights_values"]
    draw = WeightedDraw(weights)
    assert [draw.draw(rng) for _ in range(3)] == case["three_successive_results"]


def test_the_weighted_draw_never_gives_the_first_goal_and_the_last_one_twice_as_often() -> None:
    draw = WeightedDraw([1.0, 1.0, 1.0, 1.0])
    rng = random.Random(0)
    drawn = [draw.draw(rng) for _ in range(4000)]
    assert [round(drawn.count(number) / 1000) for number in range(4)] == [0, 1, 1, 2]
    assert WeightedDraw([3.0]).draw(rng) == 0


def _plain(text: str) -> str:
    """The published list has no quotes, and mostly no final dot."""
    return re.sub(r"['\"]", "", text).strip().strip(".").strip()


@needs_real_data
def test_the_published_human_goals_stand_where_the_order_puts_them() -> None:
    published = json.loads((Path(REAL_OPTIONS["products"]).parent / "human_goals.json").read_text())
    records = json.loads(Path(REAL_OPTIONS["human_goals"]).read_text())
    order = list(range(len(published)))
    random.Random(233).shuffle(order)
    assert (len(order), order[:4], order[-3:]) == (12087, [8655, 10304, 6940, 2750], [2856, 10294, 11181])
    place = {original: shuffled for shuffled, original in enumerate(order)}
    assert [place[original] for original in (0, 9, 12, 41, 53, 54)] == [4999, 7902, 3018, 4520, 335, 683]
    # The sample holds the records of the first 10,000 products: the first 106 goals before the shuffle.
    written = [_plain(r["instruction"]) for each in records.values() for r in each if r["instruction_attributes"]]
    assert len(written) == 106
    assert sorted(_plain(published[place[original]]) for original in range(106)) == sorted(written)
