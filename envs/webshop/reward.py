"""What a purchase is worth: type, attributes, options and price against the goal.

Knows nothing of pages or sessions. total = r_type * (attributes + options + price met) / (their number).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from envs.webshop.catalog import Product
from envs.webshop.fuzzy import color_of, color_of_pair, is_alike
from envs.webshop.goals import Goal, GoalOption
from envs.webshop.nouns import NounTagger

_SCORE_WITHOUT_NOUNS = 0.2
_SIMILAR_ABOVE = 0.2
_UNRELATED_BELOW = 0.1
_NUM_SHARED_LEVELS = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TypeMatch:
    """Whether the purchase is the kind of thing that was asked for."""

    r_type: float
    query_match: bool
    category_match: bool
    title_score: float
    """Share of the goal title's nouns that the purchase's title holds."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """The reward of a purchase and its parts, named as in WebShop."""

    total: float
    """In [0, 1]; 1.0 is a perfect purchase."""
    r_type: float
    r_att: float
    w_att: float
    query_match: bool
    category_match: bool
    title_score: float
    r_price: bool
    w_price: float
    r_option: float | None = None
    """None when the goal names no option."""
    w_option: float | None = None

    @property
    def verbose_info(self) -> dict[str, float | bool]:
        """The parts under WebShop's names; the two of the options are absent where the goal names none."""
        parts = dataclasses.asdict(self)
        return {name: part for name, part in parts.items() if name != "total" and part is not None}


def reward_purchase(product: Product, chosen: Sequence[str], goal: Goal, tagger: NounTagger) -> Reward:
    """The reward of buying `product` with the chosen option values."""
    kind = match_type(product, goal.product, tagger)
    num_attributes = count_attributes(product, goal.attributes)
    num_options = count_options(chosen, goal.options)
    price_met = product.price <= goal.price_ceiling
    num_wishes = len(goal.attributes) + len(goal.options) + 1
    return Reward(
        total=kind.r_type * ((num_attributes + num_options + price_met) / num_wishes),
        r_type=kind.r_type,
        r_att=num_attributes / len(goal.attributes),
        w_att=len(goal.attributes) / num_wishes,
        query_match=kind.query_match,
        category_match=kind.category_match,
        title_score=kind.title_score,
        r_option=num_options / len(goal.options) if goal.options else None,
        w_option=len(goal.options) / num_wishes if goal.options else None,
        r_price=price_met,
        w_price=1 / num_wishes,
    )


def match_type(bought: Product, wanted: Product, tagger: NounTagger) -> TypeMatch:
    """Compare search phrase, category path and title nouns; the last two rules override the first."""
    query_match = bought.query == wanted.query
    category_match = len(_levels(bought) & _levels(wanted)) >= _NUM_SHARED_LEVELS
    wanted_nouns = tagger.nouns(wanted.title)
    title_score = _SCORE_WITHOUT_NOUNS
    if wanted_nouns:
        # The divisor counts repeated nouns, as in WebShop: a title that repeats one cannot score 1 even with itself.
        title_score = len(set(tagger.nouns(bought.title)) & set(wanted_nouns)) / len(wanted_nouns)
    r_type = 1.0 if query_match or category_match or title_score > _SIMILAR_ABOVE else 0.5
    if title_score < _UNRELATED_BELOW:
        r_type = 0.1 if title_score > 0 else 0.0
    return TypeMatch(r_type=r_type, query_match=query_match, category_match=category_match, title_score=title_score)


def count_attributes(product: Product, wanted: Sequence[str]) -> int:
    """How many wanted attributes the product is listed with or mentions anywhere in its texts."""
    return sum(
        any(is_alike(listed, attribute) for listed in product.attributes)
        or attribute in product.title.lower()
        or attribute in " ".join(product.bullets).lower()
        or attribute in product.description.lower()
        for attribute in wanted
    )


def count_options(chosen: Sequence[str], wanted: Sequence[GoalOption]) -> int:
    """How many wanted options some chosen value fulfils, in whatever group; one value may fulfil several."""
    values = [color_of(value) for value in chosen]
    return sum(any(is_alike(value, _wish(option)) for value in values) for option in wanted)


def _wish(option: GoalOption) -> str:
    """The text a wanted option is matched as: WebShop matches a synthetic one together with its group's name."""
    if option.group is None:
        return color_of(option.value)
    return color_of_pair(option.group, option.value) or str((option.group, option.value))


def _levels(product: Product) -> set[str]:
    return {level.strip() for level in product.product_category.split("›")}
