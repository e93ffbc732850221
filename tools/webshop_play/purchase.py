"""What a purchase was paid for, part by part, in words.

Knows nothing of terminals or browsers.
"""

from __future__ import annotations

import dataclasses

from envs.webshop.goals import NO_CEILING, Goal
from envs.webshop.reward import Reward, count_attributes, count_options
from envs.webshop.session import Session


@dataclasses.dataclass(frozen=True, slots=True)
class RewardPart:
    """One row of the bill."""

    name: str
    fulfilled: str
    """Such as `2 of 3`."""
    weight: str
    """Share of the total this part can give; a factor for the type."""
    details: tuple[tuple[str, bool], ...]
    """Each wish and whether it was met."""


def explain(session: Session) -> tuple[RewardPart, ...]:
    """The parts of the session's last purchase; none before the first."""
    reward, product, goal = session.reward, session.product, session.goal
    if reward is None or product is None:
        return ()
    attributes = tuple((wish, bool(count_attributes(product, (wish,)))) for wish in goal.attributes)
    chosen = tuple(session.options.values())
    options = tuple(
        (f"{option.group}: {option.value}" if option.group else option.value, bool(count_options(chosen, (option,))))
        for option in goal.options
    )
    ceiling = "no limit" if goal.price_ceiling == NO_CEILING else f"at most ${goal.price_ceiling:.2f}"
    parts = [_wishes("attributes", attributes, reward.w_att)]
    if reward.w_option is not None:
        parts.append(_wishes("options", options, reward.w_option))
    parts.append(_wishes("price", ((f"{ceiling}, costs ${product.price:.2f}", reward.r_price),), reward.w_price))
    parts.append(_type(reward))
    return tuple(parts)


def formula(reward: Reward) -> str:
    """How the total is made of its parts."""
    options = "" if reward.r_option is None else f" + {reward.w_option:.3f} × {reward.r_option:.3f}"
    terms = f"{reward.w_att:.3f} × {reward.r_att:.3f}{options} + {reward.w_price:.3f} × {float(reward.r_price):.3f}"
    return f"{reward.r_type:g} × ({terms}) = {reward.total:.4f}"


def wanted_product(goal: Goal) -> str:
    """The product the instruction was written for; others may be just as good."""
    return f"{goal.product.asin}  {goal.product.title}"


def _wishes(name: str, details: tuple[tuple[str, bool], ...], weight: float | None) -> RewardPart:
    met = sum(is_met for _, is_met in details)
    return RewardPart(name, f"{met} of {len(details)}", f"{weight or 0:.3f}", details)


def _type(reward: Reward) -> RewardPart:
    details = (
        ("same search phrase", reward.query_match),
        ("two category levels in common", reward.category_match),
        (f"title nouns {reward.title_score:.3f}, more than 0.2", reward.title_score > 0.2),
    )
    return RewardPart("type", f"{reward.r_type:g}", "factor", details)
