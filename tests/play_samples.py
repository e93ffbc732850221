"""What the tests of tools.play_webshop share: a shop of four tables and a recorded group played in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from async_agent_rl.env import Task
from envs.webshop.env import WebShop
from learner.episodes import EpisodeLine, EpisodeTurn
from tests.webshop_samples import WordTagger, raw_product, write_files

SIZES = {"Size": [{"value": "Small"}, {"value": "Large"}]}
MINED = {"attributes": ["solid wood"], "instruction": "Find me tables", "instruction_attributes": ["solid wood"]}


def write_shop(folder: Path, **changes: Any) -> dict[str, str]:
    """Files of four products with two sizes each; the options that name them."""
    products = [raw_product(f"A{number}", customization_options=SIZES, **changes) for number in range(4)]
    return write_files(folder, products, {f"A{number}": MINED for number in range(4)})


def make_world(files: Mapping[str, str], **options: Any) -> WebShop:
    return WebShop({**files, **options}, tagger=WordTagger())


def winning_actions(world: WebShop, index: int = 0) -> tuple[str, ...]:
    """A perfect purchase of a training task."""
    goal = world.goal("train", index)
    return (
        "search[tables]",
        f"click[{goal.product.asin.lower()}]",
        f"click[{goal.options[0].value}]",
        "click[buy now]",
    )


async def record_episode(world: WebShop, member: int, actions: Sequence[str], **changes: Any) -> EpisodeLine:
    """Play the actions for real and value them: winners +1, others -2, their first step ten times that."""
    env = world.new_env()
    observation = await env.reset(Task(split="train", index=0, seed=0))
    turns, won = [], False
    for number, action in enumerate(actions):
        response = f"<think>step {number}</think><action>{action}</action>"
        result = await env.step(response)
        won = result.won
        turns.append((observation, response, result))
        observation = result.observation
    advantage = 1.0 if won else -2.0
    line = EpisodeLine(
        version=1, group=7, member=member, task_index=0, actor="actor-0", world_id="",
        won=won, score=float(won), truncated=not won,
        turns=[
            EpisodeTurn(
                prompt=seen.prompts[0], response=response, action=result.action, state_key=seen.state_key,
                reward=result.reward, discounted_return=10.0 if won else 0.0, episode_advantage=advantage,
                step_advantage=10 * advantage if number == 0 else 0.0, versions=(0, number), format_ok=True,
                is_admissible=result.is_admissible, response_cut=False,
            )
            for number, (seen, response, result) in enumerate(turns)
        ],
    )  # fmt: skip
    return msgspec.structs.replace(line, **changes)


async def record_group(world: WebShop) -> list[EpisodeLine]:
    """A winner of four steps, and one that only searched for nothing."""
    return [await record_episode(world, 0, winning_actions(world)), await record_episode(world, 1, ["search[zebra]"])]


def write_lines(path: Path, lines: Sequence[EpisodeLine]) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path
