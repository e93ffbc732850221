"""A scripted shopper: plays WebShop by rule, writes down what it saw and said.

It is the teacher of the tiny policy and the yardstick of the catalogue (`python -m tools.shopper` prints how often
simple rules succeed). Its faults are faults of rule, never random targets: it leaves an option out, or buys the first
result whatever it costs. Knows nothing of tokens or models.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import sys
from collections.abc import Sequence

from async_agent_rl.env import Split, Task
from async_agent_rl.errors import EXIT_BAD_INPUT, EXIT_OK, InputError
from envs.webshop.catalog import Product
from envs.webshop.env import WebShop
from envs.webshop.goals import Goal
from envs.webshop.pages import SegmentKind
from envs.webshop.session import Session, View

INSTRUCTION_OPENING = "Find me "


class Skill(enum.StrEnum):
    """What a step of a demonstration teaches."""

    SEARCH = "search"
    PRODUCT = "product"
    OPTION = "option"
    BUY = "buy"


class ProductRule(enum.StrEnum):
    """Which of the results the shopper opens."""

    FIRST = "first"
    UNDER_CEILING = "under_ceiling"
    """The first whose printed price respects the ceiling."""
    FITTING = "fitting"
    """The first that can be bought for a perfect reward: a shopper who reads every page."""


class Query(enum.StrEnum):
    """What the shopper types into the search field."""

    FIRST_ATTRIBUTE = "first_attribute"
    """Too vague to find anything."""
    WORDS = "words"
    """All words that describe the product."""
    WORDS_AND_OPTIONS = "words_and_options"
    """The wanted options as well, which moves look-alikes with other options down the page."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Habits:
    """The rules of one episode."""

    product_rule: ProductRule = ProductRule.FITTING
    max_options: int | None = None
    """Chooses only so many of the options the goal names, in its order; None: all of them."""
    query: Query = Query.WORDS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Demonstration:
    """One step of the shopper."""

    skill: Skill
    prompt: str
    """What the environment shows the policy."""
    response: str
    """What the policy should answer."""
    is_first_result: bool = True
    """For Skill.PRODUCT: the product opened stood first on the page."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """What the shopper thinks and does in one state."""

    skill: Skill
    thought: str
    action: str

    @property
    def response(self) -> str:
        return f"<think>{self.thought}</think><action>{self.action}</action>"


def write_query(goal: Goal, query: Query) -> str:
    """The search words, copied from the instruction as they stand there.

    Works for synthetic goals of the embedded catalogue, whose instruction is
    `Find me <attribute>, <attribute> <type>[ with <option>: <value>, and ...][, and price lower than ...]`.
    """
    words = goal.instruction.removeprefix(INSTRUCTION_OPENING).split(", and price lower than ")[0]
    if query is Query.WORDS_AND_OPTIONS:
        return words
    for option in goal.options:
        words = words.split(f" with {option.group}: ")[0]
    return words.split(",")[0] if query is Query.FIRST_ATTRIBUTE else words


def decide(world: WebShop, session: Session, habits: Habits) -> Decision | None:
    """The shopper's next step, a pure function of the state; None when it does not know how to go on."""
    if session.view is View.SEARCH:
        return Decision(Skill.SEARCH, "find it", f"search[{write_query(session.goal, habits.query)}]")
    if session.view is View.RESULTS:
        product = pick_product(world, session, habits.product_rule)
        return None if product is None else Decision(Skill.PRODUCT, "open it", f"click[{product.asin}]")
    if session.view is not View.ITEM:
        return None
    options = session.goal.options[: habits.max_options]
    for option in options:
        assert option.group is not None  # synthetic goals name the group
        if option.group not in session.options:
            if option.value not in session.page.clickables:
                return None
            # With the blank it has in the instruction, so that the tokens are the same as well.
            return Decision(Skill.OPTION, f" {option.group}: {option.value}", f"click[{option.value}]")
    return Decision(Skill.BUY, "buy it", "click[buy now]")


def play(world: WebShop, goal: Goal, habits: Habits) -> float:
    """Raw reward in [0, 1] of one whole episode; 0.0 when the shopper gives up."""
    session = world.session(goal)
    while (decision := decide(world, session, habits)) is not None:
        outcome = session.act(decision.action)
        if outcome.done:
            return outcome.reward
    return 0.0


async def demonstrate(world: WebShop, split: Split, index: int, habits: Habits) -> list[Demonstration]:
    """One episode of the shopper, step by step, with the prompts the environment shows; ends early if it gives up."""
    env = world.new_env()
    goal = world.goal(split, index)
    session = world.session(goal)
    observation = await env.reset(Task(split=split, index=index, seed=0))
    steps: list[Demonstration] = []
    while (decision := decide(world, session, habits)) is not None:
        first = next((text for text in shown_asins(session)), None)
        steps.append(
            Demonstration(
                skill=decision.skill,
                prompt=observation.prompts[0],
                response=decision.response,
                is_first_result=decision.action == f"click[{first}]",
            )
        )
        # The same steps in a session of our own, which unlike the environment shows its state.
        session.act(decision.action)
        result = await env.step(decision.response)
        if result.done:
            break
        observation = result.observation
    return steps


def shown_asins(session: Session) -> list[str]:
    """ASINs on the open results page, in page order."""
    return [segment.text for segment in session.page.segments if segment.kind is SegmentKind.PRODUCT]


def pick_product(world: WebShop, session: Session, rule: ProductRule) -> Product | None:
    """The product the rule opens; None on an empty page, or where none fits."""
    shown = [world.catalog.by_asin[asin] for asin in shown_asins(session)]
    if not shown:
        return None
    goal = session.goal
    if rule is ProductRule.UNDER_CEILING:
        return next((product for product in shown if product.price <= goal.price_ceiling), shown[0])
    if rule is ProductRule.FITTING:
        return next((product for product in shown if fits(product, goal)), None)
    return shown[0]


def fits(product: Product, goal: Goal) -> bool:
    """Buying `product` with the wanted options is a perfect purchase (type aside: results are of one type)."""
    offered = {(group.name, value) for group in product.options for value in group.values}
    return (
        product.query == goal.product.query
        and product.price <= goal.price_ceiling
        and set(goal.attributes) <= set(product.attributes)
        and all((option.group, option.value) in offered for option in goal.options)
    )


RULES: tuple[tuple[str, Habits], ...] = (
    (
        "vague search, first result, all options",
        Habits(product_rule=ProductRule.FIRST, query=Query.FIRST_ATTRIBUTE),
    ),
    ("first result, no option", Habits(product_rule=ProductRule.FIRST, max_options=0)),
    ("first result, one option", Habits(product_rule=ProductRule.FIRST, max_options=1)),
    ("first result, all options", Habits(product_rule=ProductRule.FIRST)),
    ("first result under the ceiling, all options", Habits(product_rule=ProductRule.UNDER_CEILING)),
    (
        "options in the search, first result, all options",
        Habits(product_rule=ProductRule.FIRST, query=Query.WORDS_AND_OPTIONS),
    ),
    ("first result that fits, all options", Habits(product_rule=ProductRule.FITTING)),
)
"""What the yardstick measures, from careless to perfect."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.shopper", description="How often simple rules succeed on the embedded catalogue."
    )
    parser.add_argument("--split", choices=("train", "validation"), default="validation")
    parser.add_argument("--n", type=int, default=500, help="first n goals of the split, default %(default)s")
    parser.add_argument("--results-per-page", type=int, default=5)
    args = parser.parse_args(argv)
    try:
        world = WebShop({"results_per_page": args.results_per_page})
    except InputError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_INPUT
    goals = [world.goal(args.split, index) for index in range(min(args.n, world.num_tasks(args.split)))]
    print(f"{len(goals)} {args.split} goals, {args.results_per_page} results a page; share of perfect purchases:")
    for name, habits in RULES:
        share = sum(play(world, goal, habits) == 1.0 for goal in goals) / len(goals)
        print(f"  {share:5.1%}  {name}")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
