"""WebShop as a world: options, tasks, episodes, training rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from async_agent_rl.env import SPLITS, Env, Observation, Task, World
from async_agent_rl.errors import ConfigError, InputError
from envs.webshop.env import WIN_REWARD, WebShop
from envs.webshop.options import WebShopOptions, parse_options
from tests.webshop_samples import REAL_OPTIONS, WordTagger, needs_real_data, raw_product, write_files

TASK = Task(split="train", index=0, seed=0)


def act(action: str) -> str:
    return f"<think> so </think> <action> {action} </action>"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Four products of a kind, with two sizes each."""
    sizes = {"Size": [{"value": "Small"}, {"value": "Large"}]}
    products = [raw_product(f"A{number}", customization_options=sizes) for number in range(4)]
    entry = {"attributes": ["solid wood"], "instruction": "Find me tables", "instruction_attributes": ["solid wood"]}
    return write_files(tmp_path, products, {f"A{number}": entry for number in range(4)})


def make_world(files: dict[str, str], **options: Any) -> WebShop:
    return WebShop({**files, **options}, tagger=WordTagger())


async def play(world: WebShop, *actions: str) -> Any:
    env = world.new_env()
    await env.reset(TASK)
    result = None
    for action in actions:
        result = await env.step(act(action))
    return result


def test_webshop_satisfies_the_contracts(files: dict[str, str]) -> None:
    world: World = make_world(files)
    env: Env = world.new_env()
    assert [world.num_tasks(split) for split in SPLITS] == [4, 2, 2]
    assert env is not None
    assert world.world_id == make_world(files).catalog_hash  # type: ignore[attr-defined]


async def test_a_perfect_purchase_wins_ten(files: dict[str, str]) -> None:
    world = make_world(files)
    goal = world.goal("train", 0)
    result = await play(
        world, "search[ tables ]", f"click[{goal.product.asin}]", f"click[ {goal.options[0].value}]", "click[buy now]"
    )
    assert (result.reward, result.done, result.won, result.score) == (WIN_REWARD, True, True, 1.0)
    assert (result.format_ok, result.is_admissible, result.action) == (True, True, "click[buy now]")
    assert result.info["task_score"] == 1.0
    assert result.info["purchase"]["options"] == {"size": goal.options[0].value}
    assert result.info["purchase"]["reward"]["total"] == 1.0
    assert msgspec.json.decode(msgspec.json.encode(result.info)) == result.info


async def test_an_imperfect_purchase_earns_its_score_and_no_reward(files: dict[str, str]) -> None:
    world = make_world(files)
    result = await play(world, "search[tables]", f"click[{world.goal('train', 0).product.asin}]", "click[buy now]")
    assert (result.reward, result.done, result.won) == (0.0, True, False)
    assert result.score == pytest.approx(2 / 3)


async def test_after_a_purchase_the_world_stands_still_until_reset(files: dict[str, str]) -> None:
    world = make_world(files)
    env = world.new_env()
    first = await env.reset(TASK)
    for action in ("search[tables]", f"click[{world.goal('train', 0).product.asin}]"):
        await env.step(act(action))
    bought = await env.step(act("click[buy now]"))
    after = await env.step(act("search[tables]"))
    assert (after.observation, after.reward, after.done, after.is_admissible) == (bought.observation, 0.0, True, False)
    assert await env.reset(TASK) == first
    await env.close()
    await env.close()


@pytest.mark.parametrize(
    ("parser", "response", "view", "format_ok", "is_admissible"),
    [
        ("strict", "search[tables]", "search", False, False),
        ("legacy", "search[tables]", "results", False, True),
        ("strict", act("search[tables]"), "results", True, True),
        ("strict", act("search[ ]"), "search", True, False),
        ("strict", act("click[search]"), "search", True, False),
        ("strict", act("click[nothing]"), "search", True, False),
        ("legacy", "<action>search[tables]</action>", "results", False, True),
        ("legacy", act("click[nothing]"), "search", True, False),
    ],
)
async def test_form_and_admissibility_are_two_flags(
    files: dict[str, str], parser: str, response: str, view: str, format_ok: bool, is_admissible: bool
) -> None:
    env = make_world(files, parser=parser).new_env()
    await env.reset(TASK)
    result = await env.step(response)
    assert (result.format_ok, result.is_admissible) == (format_ok, is_admissible)
    assert msgspec.json.decode(result.observation.state_key)[0] == view


async def test_an_observation_carries_page_state_and_actions(files: dict[str, str]) -> None:
    observation: Observation = await make_world(files, prompt="compact").new_env().reset(TASK)
    assert observation.text == "'Search'"
    assert observation.admissible == ("search[...]",)
    assert observation.prompts[0].endswith("[SEP] Done: none [SEP] Search [SEP] Actions: search[...]")


async def test_chosen_options_change_the_state_but_not_the_page(files: dict[str, str]) -> None:
    world = make_world(files)
    opened = await play(world, "search[tables]", "click[a0]")
    chosen = await play(world, "search[tables]", "click[a0]", "click[small]")
    assert opened.observation.text == chosen.observation.text
    assert opened.observation.state_key != chosen.observation.state_key


async def test_history_length_and_overflow_reach_the_prompts(files: dict[str, str]) -> None:
    actions = ("search[tables]", "click[next >]", "click[< prev]")
    assert len((await play(make_world(files), *actions)).observation.prompts) == 3
    assert len((await play(make_world(files, history=0), *actions)).observation.prompts) == 1
    assert len((await play(make_world(files, overflow="chars13000"), *actions)).observation.prompts) == 2


async def test_a_task_that_does_not_exist_is_refused(files: dict[str, str]) -> None:
    with pytest.raises(InputError, match="task 2 of split test does not exist: WebShop has 2 test goals"):
        await make_world(files).new_env().reset(Task(split="test", index=2, seed=0))


async def test_a_step_before_reset_is_a_bug(files: dict[str, str]) -> None:
    with pytest.raises(RuntimeError, match="before reset"):
        await make_world(files).new_env().step("x")


def test_two_worlds_of_the_same_files_have_the_same_tasks(files: dict[str, str]) -> None:
    one, two = make_world(files), make_world(files)
    for split in SPLITS:
        for index in range(one.num_tasks(split)):
            assert one.goal(split, index).instruction == two.goal(split, index).instruction


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"page_size": 5}, "env.webshop.page_size=5 is not a key of WebShop; the keys are products, attributes"),
        ({"history": "two"}, "env.webshop.history='two': Expected `int`, got `str`"),
        ({"history": -1}, "env.webshop.history must be at least 0, got -1"),
        ({"results_per_page": 0}, "env.webshop.results_per_page must be at least 1, got 0"),
        ({"goals": "robot"}, "env.webshop.goals='robot': Invalid enum value 'robot'"),
        ({"products": "x.json"}, "belong together, got products='x.json' and attributes=None"),
        ({"goals": "human"}, "env.webshop.goals=human needs env.webshop.human_goals=FILE"),
    ],
)
def test_a_wrong_option_is_named_with_its_value(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(options)
    assert message in str(caught.value)


def test_without_files_the_embedded_catalogue_is_meant() -> None:
    options = WebShopOptions()
    assert options.products_path.parts[-4:] == ("webshop", "data", "catalog", "products.json.gz")
    assert options.attributes_path.parts[-1] == "attributes.json.gz"
    assert options.human_goals_path is None


def test_human_instructions_are_not_opened_for_synthetic_goals(files: dict[str, str]) -> None:
    assert make_world(files, human_goals="nowhere.json").num_tasks("train") == 4


@needs_real_data
async def test_every_goal_of_the_real_products_can_be_won() -> None:
    world = WebShop(REAL_OPTIONS)
    assert len(world.catalog.products) == 33
    assert all(world.num_tasks(split) for split in SPLITS)
    for split in SPLITS:
        for index in range(world.num_tasks(split)):
            goal = world.goal(split, index)
            session = world.session(goal)
            session.act(f"search[{goal.product.title}]")
            while goal.product.asin.lower() not in session.page.clickables:
                assert session.number < 5
                session.act("click[next >]")
            for argument in (goal.product.asin, *(option.value for option in goal.options)):
                assert session.act(f"click[{argument}]").executed
            assert session.act("click[buy now]").reward == 1.0


@needs_real_data
def test_the_real_human_goals_load() -> None:
    world = WebShop({**REAL_OPTIONS, "goals": "human"}, tagger=WordTagger())
    assert sum(world.num_tasks(split) for split in SPLITS) == 2


@needs_real_data
def test_the_real_dress_reads_as_recorded() -> None:
    world = WebShop(REAL_OPTIONS, tagger=WordTagger())
    dress = world.catalog.by_asin["B08ZRR3DZT"]
    goal = next(
        world.goal(split, i)
        for split in SPLITS
        for i in range(world.num_tasks(split))
        if world.goal(split, i).product is dress
    )
    session = world.session(goal)
    session.act("search[one shoulder bodycon dress]")
    page = session.act("click[b08zrr3dzt]").page
    assert page.text.split(f"{goal.instruction} [SEP] ")[1] == (
        "Back to Search [SEP] < Prev [SEP] size [SEP] x-small [SEP] small [SEP] medium [SEP] large [SEP] x-large [SEP] "
        "color [SEP] black [SEP] light blue [SEP] pink [SEP] plain black [SEP] red [SEP] white [SEP] chocolate brown "
        "[SEP] khaki [SEP] SheIn Women's Sexy One Shoulder Sleeveless Cutout Mini Club Pencil Bodycon Dress [SEP] "
        "Price: $19.99 to $27.99 [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
    )
    assert len(session.act("click[features]").page.texts) == 4 + 7
    assert 19.99 <= dress.price < 27.99
