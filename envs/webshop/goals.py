"""What the agent is asked for: synthetic and human goals, their order, and the split by product.

Goals depend on the catalogue alone. Knows nothing of pages, rewards or runs.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from async_agent_rl.env import Split
from async_agent_rl.errors import InputError
from envs.webshop.catalog import Catalog, Product
from envs.webshop.draws import DATASET_SEED, unit_draw

GoalKind = Literal["synthetic", "human"]

NO_CEILING = 1_000_000.0
"""Dollars; the ceiling of a product too dear for the grid. It is not mentioned in the instruction."""
_CEILINGS = tuple(float(dollars) for dollars in range(10, 1000, 10))
_NUM_CANDIDATES = 4

VALIDATION_SHARE = 0.1
TEST_SHARE = 0.2


@dataclasses.dataclass(frozen=True, slots=True)
class GoalOption:
    """An option value the buyer wants. Human goals do not say which group it belongs to."""

    value: str
    group: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Goal:
    """One instruction and what a perfect purchase must fulfil. Compared by identity."""

    product: Product
    """The product the instruction was written for; another one that fits as well is just as good."""
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[GoalOption, ...]
    price_ceiling: float
    """Dollars; the price of the purchase may be equal to it."""
    weight: float
    """How often WebShop draws it at random; larger for goals with rare attributes."""


def build_goals(catalog: Catalog, kind: GoalKind) -> tuple[Goal, ...]:
    """All goals of a catalogue in WebShop's published order (shuffled once with seed 233).

    Raises:
        InputError: the catalogue gives no goal of this kind.
    """
    products = catalog.products
    goals = _all_synthetic(products) if kind == "synthetic" else [goal for p in products for goal in _human(p)]
    if not goals:
        cure = (
            'the attributes file needs products with "instruction" and "instruction_attributes"'
            if kind == "synthetic"
            else "the human goals file needs records for these products, or choose goals=synthetic"
        )
        raise InputError(f"{len(catalog.products)} products gave no {kind} goal: {cure}")
    random.Random(DATASET_SEED).shuffle(goals)
    return tuple(goals)


def homes_by_product(asins: Iterable[str]) -> dict[str, Split]:
    """The split of each product: about 70, 10 and 20 % train, validation and test.

    Products are ordered by a hash of their asin, so neither file order nor other products' goals move one across.
    With at least three products no split is empty; below that, train comes first and then test.
    """
    ordered = sorted(set(asins), key=lambda asin: (unit_draw("split", asin), asin))
    num_test = max(round(TEST_SHARE * len(ordered)), 1) if len(ordered) >= 2 else 0
    num_validation = max(round(VALIDATION_SHARE * len(ordered)), 1) if len(ordered) >= 3 else 0
    homes: dict[str, Split] = dict.fromkeys(ordered, "train")
    homes.update(dict.fromkeys(ordered[:num_test], "test"))
    homes.update(dict.fromkeys(ordered[num_test : num_test + num_validation], "validation"))
    return homes


def split_by_product(goals: Sequence[Goal]) -> dict[Split, tuple[Goal, ...]]:
    """Goals that share no product between splits; see `homes_by_product`.

    Goals keep their order inside a split, so the first n of a split are a fixed panel.
    """
    homes = homes_by_product(goal.product.asin for goal in goals)
    parts: dict[Split, list[Goal]] = {"train": [], "validation": [], "test": []}
    for goal in goals:
        parts[homes[goal.product.asin]].append(goal)
    return {split: tuple(part) for split, part in parts.items()}


def draw_ceiling(price: float, *names: str | int) -> float:
    """A price ceiling in dollars above `price`: the larger of two different draws from the next four grid values.

    Args:
        price: dollars the product costs.
        names: which goal it is for; the draw is a pure function of them.

    Returns:
        NO_CEILING where fewer than two grid values (10, 20, ..., 990) lie strictly above the price.
    """
    candidates = [ceiling for ceiling in _CEILINGS if ceiling > price][:_NUM_CANDIDATES]
    pairs = list(itertools.combinations(candidates, 2))
    if not pairs:
        return NO_CEILING
    return max(pairs[int(unit_draw("ceiling", *names) * len(pairs))])


def goals_of(product: Product, kind: GoalKind) -> Iterator[Goal]:
    """The goals of one product in WebShop's order, all of weight 1: see `rarity` for that of synthetic ones."""
    return _synthetic(product) if kind == "synthetic" else _human(product)


def count_goals_of(product: Product, kind: GoalKind) -> int:
    """How many goals `goals_of` gives, without making them."""
    if kind == "human":
        return sum(bool(record.attributes) for record in product.human_instructions)
    return 0 if product.instruction is None else math.prod(len(group.values) for group in product.options)


def rarity(goal: Goal, counts: Mapping[str, int]) -> float:
    """WebShop's weight of a synthetic goal: the mean of 1 / (number of goals with the attribute)."""
    return sum(1 / counts[attribute] for attribute in goal.attributes) / len(goal.attributes)


def _all_synthetic(products: Iterable[Product]) -> list[Goal]:
    counts: collections.Counter[str] = collections.Counter()
    drafts: list[Goal] = []
    for product in products:
        for goal in _synthetic(product):
            counts.update(set(goal.attributes))
            drafts.append(goal)
    return [dataclasses.replace(goal, weight=rarity(goal, counts)) for goal in drafts]


def _synthetic(product: Product) -> Iterator[Goal]:
    """One goal per combination of option values, for a product with an instruction."""
    if product.instruction is None:
        return
    ceiling = draw_ceiling(product.price, product.asin)
    groups = sorted(product.options, key=lambda group: group.name)
    choices = [[GoalOption(value, group.name) for value in group.values] for group in groups]
    for options in itertools.product(*choices):
        wish = ", and ".join(f"{option.group}: {option.value}" for option in options)
        text = product.instruction + (f" with {wish}" if wish else "") + _price_text(ceiling)
        yield Goal(product, text, product.instruction_attributes, options, ceiling, weight=1.0)


def _human(product: Product) -> Iterator[Goal]:
    """One goal per human record that names at least one attribute."""
    for number, record in enumerate(product.human_instructions):
        if not record.attributes:
            continue
        ceiling = draw_ceiling(product.price, product.asin, number)
        text = record.text.strip(".") + _price_text(ceiling)
        options = tuple(GoalOption(value) for value in record.options)
        yield Goal(product, text, record.attributes, options, ceiling, weight=1.0)


def _price_text(ceiling: float) -> str:
    return "" if ceiling == NO_CEILING else f", and price lower than {ceiling:.2f} dollars"
