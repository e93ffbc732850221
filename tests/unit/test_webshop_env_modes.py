"""How the world shows its pages to the agent, and what it says about itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from async_agent_rl.env import Observation, StepResult, Task
from async_agent_rl.errors import ConfigError
from envs.webshop.env import WebShop
from envs.webshop.options import parse_options
from tests.webshop_samples import WordTagger, raw_product, write_files

TASK = Task(split="train", index=1, seed=0)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    entry = {"attributes": ["solid wood"], "instruction": "Find me tables", "instruction_attributes": ["solid wood"]}
    return write_files(tmp_path, [raw_product(f"A{n}") for n in range(4)], {f"A{n}": entry for n in range(4)})


def make_world(files: dict[str, str], **options: Any) -> WebShop:
    return WebShop({**files, **options}, tagger=WordTagger())


async def play(world: WebShop, *actions: str) -> tuple[Observation, list[StepResult]]:
    env = world.new_env()
    first = await env.reset(TASK)
    return first, [await env.step(f"<think></think><action>{action}</action>") for action in actions]


async def test_a_plain_prompt_is_webshops_observation(files: dict[str, str]) -> None:
    world = make_world(files, prompt="plain")
    first, (result,) = await play(world, "search[tables]")
    goal = world.goal("train", 1)
    assert first.prompts == (f"WebShop [SEP] Instruction: [SEP] {goal.instruction} [SEP] Search",)
    assert first.text == first.prompts[0]
    assert result.observation.prompts[0].startswith(f"Instruction: [SEP] {goal.instruction} [SEP] Back to Search")


async def test_a_plain_prompt_tells_earlier_steps_and_can_do_without(files: dict[str, str]) -> None:
    world = make_world(files, prompt="plain", mode="url", num_prev_obs=1, num_prev_actions=2)
    number = world.goal_number("train", 1)
    first, (one, two) = await play(world, "search[oak]", "click[next >]")
    base = "http://127.0.0.1:3000"
    assert first.prompts == (f"{base}/{number}",)
    assert one.observation.text == f"{base}/search_results/{number}/oak/1"
    assert one.observation.prompts[0] == f"{base}/{number} [SEP] search[oak] [SEP] {one.observation.text}"
    assert two.observation.prompts == (
        f"search[oak] [SEP] {one.observation.text} [SEP] click[next >] [SEP] {two.observation.text}",
        two.observation.text,
    )


@pytest.mark.parametrize(
    ("mode", "piece"),
    [("text_rich", "[button] Back to Search [button_]"), ("html", "<!DOCTYPE html>"), ("url", "/search_results/")],
)
async def test_every_mode_reaches_the_prompt_and_the_state_is_the_same(
    files: dict[str, str], mode: str, piece: str
) -> None:
    _, (in_mode, _) = await play(make_world(files, mode=mode), "search[oak]", "click[a1]")
    _, (in_text, _) = await play(make_world(files), "search[oak]", "click[a1]")
    assert piece in in_mode.observation.prompts[0]
    assert piece in in_mode.observation.text
    assert piece not in in_text.observation.prompts[0]
    assert in_mode.observation.state_key == in_text.observation.state_key
    assert in_mode.observation.admissible == in_text.observation.admissible


async def test_every_step_names_the_catalogue_and_a_purchase_its_parts(files: dict[str, str]) -> None:
    world = make_world(files)
    asin = world.goal("train", 1).product.asin
    _, results = await play(world, "search[oak]", f"click[{asin}]", "click[buy now]")
    assert [result.info["catalog"] for result in results] == [world.catalog_hash] * 3
    assert [("verbose_info" in result.info) for result in results] == [False, False, True]
    assert results[-1].info["verbose_info"] == {
        "r_type": 1.0,
        "r_att": 1.0,
        "w_att": 0.5,
        "query_match": True,
        "category_match": True,
        "title_score": 1.0,
        "r_price": True,
        "w_price": 0.5,
    }
    assert msgspec.json.decode(msgspec.json.encode(results[-1].info)) == results[-1].info


async def test_special_queries_are_words_unless_asked_for(files: dict[str, str]) -> None:
    _, (off,) = await play(make_world(files), "search[<c> garden]")
    _, (on,) = await play(make_world(files, special_queries=True), "search[<c> garden]")
    assert "Total results: 0" in off.observation.text
    assert "Total results: 4" in on.observation.text


def test_products_left_out_are_reported_once_per_kind(tmp_path: Path) -> None:
    entry = {"attributes": ["solid wood"], "instruction": "Find me tables", "instruction_attributes": ["solid wood"]}
    products = [raw_product(asin) for asin in ("A0", "A1", "A1", "A0", "nan", "A2")]
    files = write_files(tmp_path, products, {f"A{n}": entry for n in range(3)})
    with capture_logs() as events:
        make_world(files)
    assert [(event["event"], event["num"], event["first"]) for event in events] == [
        ("webshop_repeated_products", 2, "A1"),
        ("webshop_unusable_products", 1, "nan"),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "compact", "mode": "html"}, "env.webshop.prompt=compact shows text pages only, got mode=html"),
        ({"num_prev_obs": 1}, "env.webshop.num_prev_obs=1 needs prompt=plain, got prompt=verl_agent"),
        ({"num_prev_actions": -1}, "env.webshop.num_prev_actions must be at least 0, got -1"),
        ({"mode": "image"}, "env.webshop.mode='image': Invalid enum value 'image'"),
        ({"split": "mine"}, "env.webshop.split='mine': Invalid enum value 'mine'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(options)
    assert message in str(caught.value)
