"""WebShop as others' programs expect it: Gymnasium's interface, single and as a vector."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv

from async_agent_rl.errors import InputError
from envs.webshop.env import WebShop
from envs.webshop.gym import ENV_ID, WebShopGym
from tests.webshop_samples import WordTagger, raw_product, write_files


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    sizes = {"Size": [{"value": "Small"}, {"value": "Large"}]}
    products = [raw_product(f"A{number}", customization_options=sizes) for number in range(8)]
    entry = {"attributes": ["solid wood"], "instruction": "Find me tables", "instruction_attributes": ["solid wood"]}
    return write_files(tmp_path, products, {f"A{number}": entry for number in range(8)})


@pytest.fixture
def env(files: dict[str, str]) -> Iterator[WebShopGym]:
    env = WebShopGym(world=WebShop({**files, "prompt": "plain"}, tagger=WordTagger()))
    yield env
    env.close()


@pytest.mark.parametrize("mode", ["text", "text_rich", "html", "url"])
def test_gymnasiums_own_checker_is_content(files: dict[str, str], mode: str) -> None:
    env = gymnasium.make(ENV_ID, render_mode="ansi", options={**files, "mode": mode})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    env.close()


def test_the_identifier_can_name_the_module_that_knows_it(files: dict[str, str], project_root: Path) -> None:
    code = (
        f"import gymnasium; env = gymnasium.make('envs.webshop.gym:{ENV_ID}', options={files}); print(env.reset()[0])"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=project_root, capture_output=True, text=True, check=True)
    assert run.stdout.startswith("WebShop [SEP] Instruction: [SEP] Find me tables")


def test_the_example_of_the_documentation_runs(project_root: Path) -> None:
    page = (project_root / "docs" / "webshop.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    assert ENV_ID in code
    subprocess.run([sys.executable, "-c", code], cwd=project_root, check=True, timeout=120)


def test_the_first_info_names_the_catalogue(env: WebShopGym) -> None:
    assert env.reset(seed=1)[1]["catalog"] == env.world.catalog_hash != ""


def test_an_episode_ends_with_the_raw_reward_and_its_parts(env: WebShopGym) -> None:
    env.reset(options={"task": 0})
    goal = env.world.goal("train", 0)
    for action in ("search[tables]", f"click[{goal.product.asin}]"):
        _, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated, info["executed"]) == (0.0, False, False, True)
    observation, reward, terminated, _, info = env.step("click[buy now]")
    assert (reward, terminated, info["won"]) == (pytest.approx(2 / 3), True, False)
    assert observation.startswith("Thank you for shopping with us!")
    assert (info["verbose_info"]["r_att"], info["verbose_info"]["r_option"]) == (1.0, 0.0)
    again = env.step("search[tables]")
    assert again[:4] == (observation, 0.0, True, False)
    assert env.reset(options={"task": 0})[0].startswith("WebShop")


def test_the_agent_is_told_what_it_can_do(env: WebShopGym) -> None:
    _, info = env.reset(options={"task": 0})
    assert info["admissible"] == ["search[...]"]
    _, _, _, _, info = env.step("search[tables]")
    assert info["admissible"][:2] == ["click[back to search]", "click[next >]"]
    assert not env.step("click[nothing]")[4]["executed"]


@pytest.mark.parametrize("number", [3, np.int64(3), np.uint8(3)])
def test_numpys_integers_name_the_same_task(env: WebShopGym, number: Any) -> None:
    _, info = env.reset(options={"task": number})
    assert info["goal"] == env.world.goal_number("train", 3)


def test_a_seed_repeats_the_goals(env: WebShopGym) -> None:
    def goals(seed: int) -> list[int]:
        return [env.reset(seed=seed if first else None)[1]["goal"] for first in (True, False, False, False)]

    assert goals(5) == goals(5)
    assert len({tuple(goals(seed)) for seed in range(5)}) > 1


def test_reset_can_look_in_another_split_once(env: WebShopGym) -> None:
    _, info = env.reset(options={"task": 0, "split": "test"})
    assert info["goal"] == env.world.goal_number("test", 0)
    _, info = env.reset(options={"task": 0})
    assert info["goal"] == env.world.goal_number("train", 0)


def test_histories_reach_the_observation(files: dict[str, str]) -> None:
    env = gymnasium.make(ENV_ID, options={**files, "mode": "url", "num_prev_obs": 1, "num_prev_actions": 1})
    first, _ = env.reset(options={"task": 0})
    second = env.step("search[oak]")[0]
    assert second == f"{first} [SEP] search[oak] [SEP] {first.rpartition('/')[0]}/search_results/" + (
        f"{first.rpartition('/')[2]}/oak/1"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": 99}, "task 99 of split train does not exist"),
        ({"task": -1}, "task -1 of split train does not exist"),
        ({"goal": 1}, r'reset knows the options "task" and "split", got \[.goal.\]'),
    ],
)
def test_reset_refuses_what_it_cannot_do(env: WebShopGym, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        env.reset(options=options)


def test_a_step_before_reset_is_refused(env: WebShopGym) -> None:
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("search[x]")


def test_rendering_is_the_text_page_whatever_the_mode(files: dict[str, str]) -> None:
    env = gymnasium.make(ENV_ID, render_mode="ansi", options={**files, "mode": "html"})
    env.reset(seed=0)
    assert str(env.render()).startswith("WebShop [SEP] Instruction:")


def test_a_vector_shares_one_shop_and_plays_each_member_apart(files: dict[str, str]) -> None:
    vector = gymnasium.make_vec(ENV_ID, num_envs=3, vectorization_mode="sync", options=files)
    assert isinstance(vector, SyncVectorEnv)
    assert len({id(member.unwrapped.world) for member in vector.envs}) == 1  # type: ignore[attr-defined]
    observations, info = vector.reset(seed=3)
    assert len(observations) == 3
    assert len(set(info["catalog"])) == 1
    observations, rewards, terminated, truncated, info = vector.step(("search[tables]", "noop", "search[]"))
    assert [text.startswith("Instruction:") for text in observations] == [True, False, False]
    assert info["executed"].tolist() == [True, False, False]
    assert not rewards.any()
    assert not terminated.any()
    assert not truncated.any()
    vector.close()


def test_a_shop_nobody_uses_is_freed(files: dict[str, str]) -> None:
    env = WebShopGym(options=files)
    world = weakref.ref(env.world)
    assert WebShopGym(options=files).world is env.world
    env.close()
    del env
    gc.collect()
    assert world() is None


def test_a_split_without_goals_is_refused(tmp_path: Path) -> None:
    entry = {"attributes": ["solid wood"], "instruction": "Find me tables", "instruction_attributes": ["solid wood"]}
    files = write_files(tmp_path, [raw_product("A1")], {"A1": entry})
    with pytest.raises(InputError, match="the test split has no goal"):
        WebShopGym(options=files, split="test")
