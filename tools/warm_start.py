"""Build the tiny policy from nothing: `python -m tools.warm_start [--seed 0 --out configs/models/webshop_tiny]`.

Two phases. First a clean shopper teaches the skills, short rows before whole pages. Then a shopper with bad habits
teaches when not to use them: it mostly leaves the second option out, sometimes all of them. What is learned there is a
rule, not noise, so that even greedy decoding of the result keeps the fault and reinforcement learning has something to
mend; the right branch keeps some probability, or nothing would ever be found. Only goals of the train split are seen.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch

from actors.evaluation import run_evaluation
from async_agent_rl.config_loading import load_config
from async_agent_rl.errors import EXIT_BAD_INPUT, EXIT_OK, InputError
from async_agent_rl.seeds import Purpose, derive_seed, generator
from envs.webshop.env import WebShop
from tools.behaviour_cloning import SEPARATOR, BatchMaker, Progress, Row, Stage, Trainer, cut_prompt, make_row
from tools.shopper import Demonstration, Habits, ProductRule, Query, Skill, demonstrate
from tools.tiny_model import TinyQwen2, TinyShape, initialise, save_model
from tools.tiny_tokenizer import build_tokenizer, save_tokenizer, syllable_ids, text_encoder

PRESET = "webshop_tiny"
"""Configuration whose world the policy is made for: prompts come from it and it is what the report plays."""
DEFAULT_OUT = pathlib.Path(__file__).resolve().parent.parent / "configs" / "models" / PRESET
VOCAB_SIZE = 2048
MINUTES = 8
"""What the whole takes on one core of a 2021 server, evaluation included."""
NUM_CLEAN_EPISODES = 3500
NUM_HABIT_EPISODES = 4000
NUM_SHORTEST_PAGES = 2
"""Short results rows show one product or two."""

Copies = Mapping[Skill, float]
"""How often a row of each skill stands in the pool that batches are drawn from; missing: not at all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lesson:
    """A stage of training and the rows it uses."""

    stage: Stage
    copies: Copies
    whole_pages: bool
    blur: float
    """Tokens by which rows of one batch may differ in length; 1000 mixes all."""


CLEAN_LESSONS: tuple[Lesson, ...] = (
    Lesson(
        stage=Stage(
            name="words",
            steps=1500,
            batch_size=16,
            learning_rates=(4e-3, 4e-3),
            warm_up_steps=50,
            stop_below=0.05,
        ),
        copies={Skill.SEARCH: 1, Skill.OPTION: 1, Skill.BUY: 0.33},
        whole_pages=False,
        blur=1000,
    ),
    # Naming a product is the hardest to learn and needs most of every batch until it comes.
    Lesson(
        stage=Stage(name="products", steps=3000, batch_size=16, learning_rates=(4e-3, 3e-3), stop_below=0.03),
        copies={Skill.PRODUCT: 5, Skill.SEARCH: 1, Skill.OPTION: 1, Skill.BUY: 0.33},
        whole_pages=False,
        blur=1000,
    ),
    Lesson(
        stage=Stage(name="pages", steps=400, batch_size=16, learning_rates=(2e-3, 1e-3), warm_up_steps=30),
        copies={Skill.PRODUCT: 2, Skill.SEARCH: 1, Skill.OPTION: 1, Skill.BUY: 0.5},
        whole_pages=True,
        blur=40,
    ),
    Lesson(
        stage=Stage(name="polish", steps=500, batch_size=16, learning_rates=(1e-3, 1e-4)),
        copies={Skill.PRODUCT: 2, Skill.SEARCH: 1, Skill.OPTION: 1, Skill.BUY: 0.5},
        whole_pages=True,
        blur=40,
    ),
)
"""Copying appears suddenly, after a number of steps that differs twofold between seeds; hence `stop_below`."""

HABIT_LESSON = Lesson(
    stage=Stage(name="habits", steps=400, batch_size=32, learning_rates=(5e-4, 3e-5), warm_up_steps=20),
    # No habit concerns the choice of the product (always the first result); the rows keep the skill alive.
    copies={Skill.SEARCH: 1, Skill.PRODUCT: 1, Skill.OPTION: 1, Skill.BUY: 1},
    whole_pages=True,
    blur=40,
)
OPTION_HABITS: tuple[tuple[int | None, float], ...] = ((None, 0.27), (1, 0.62), (0, 0.11))
"""`Habits.max_options` of the second phase and their probabilities; only the last takes a single option away."""
QUERY_HABITS: tuple[tuple[Query, float], ...] = (
    (Query.WORDS, 0.57),
    (Query.WORDS_AND_OPTIONS, 0.26),
    (Query.FIRST_ATTRIBUTE, 0.17),
)


def draw_habits(rng: np.random.Generator) -> Habits:
    """The habits of one episode of the second phase."""
    max_options = rng.choice(len(OPTION_HABITS), p=[share for _, share in OPTION_HABITS])
    query = rng.choice(len(QUERY_HABITS), p=[share for _, share in QUERY_HABITS])
    return Habits(
        product_rule=ProductRule.FIRST, max_options=OPTION_HABITS[max_options][0], query=QUERY_HABITS[query][0]
    )


async def collect(world: WebShop, seed: int, num_episodes: int, with_habits: bool) -> list[Demonstration]:
    """Steps of the shopper on `num_episodes` train goals, drawn without repetition as long as there are enough."""
    rng = generator(seed, Purpose.DEMONSTRATION, int(with_habits))
    num_goals = world.num_tasks("train")
    order = np.concatenate([rng.permutation(num_goals) for _ in range(-(-num_episodes // num_goals))])
    steps: list[Demonstration] = []
    for index in order[:num_episodes]:
        habits = draw_habits(rng) if with_habits else Habits()
        steps += await demonstrate(world, "train", int(index), habits)
    # A product that was not opened because it stood first cannot be told from the page without reading options.
    return [step for step in steps if step.skill is not Skill.PRODUCT or step.is_first_result]


def tokenizer_corpus(world: WebShop, steps: Iterable[Demonstration]) -> Iterable[str]:
    """What the tokenizer learns its words from: the demonstrations, and the shop's texts."""
    for step in steps:
        # What was done last names products in lower case; with it, 800 of them would become words.
        yield from (text for text in step.prompt.split(SEPARATOR) if text == "Done: none" or "Done:" not in text)
        yield step.response
    for product in world.catalog.products:
        yield f"{product.title} [SEP] {product.description}"


def pool(lesson: Lesson, steps: Sequence[Demonstration], make: Callable[[Demonstration, str], Row]) -> list[Row]:
    """The rows of a lesson, every skill as often as `copies` says."""
    rows: list[Row] = []
    for skill, copies in lesson.copies.items():
        chosen = [step for step in steps if step.skill is skill]
        chosen = chosen * int(copies) + chosen[: round(copies % 1 * len(chosen))]
        for number, step in enumerate(chosen):
            prompt = step.prompt if lesson.whole_pages else cut_prompt(step, 1 + number % NUM_SHORTEST_PAGES)
            rows.append(make(step, prompt))
    return rows


def build(world: WebShop, seed: int, out: pathlib.Path, clean_out: pathlib.Path | None = None) -> None:
    """Train and save the policy, and the one without bad habits where `clean_out` is given."""
    clean = asyncio.run(collect(world, seed, NUM_CLEAN_EPISODES, with_habits=False))
    habitual = asyncio.run(collect(world, seed, NUM_HABIT_EPISODES, with_habits=True))
    print(f"{len(clean):,} clean and {len(habitual):,} habitual steps of the shopper on train goals", flush=True)
    tokenizer = build_tokenizer(tokenizer_corpus(world, clean), VOCAB_SIZE)
    encode = text_encoder(tokenizer)
    model = TinyQwen2(TinyShape(vocab_size=len(tokenizer)))
    initialise(model, derive_seed(seed, Purpose.MODEL_INIT) % 2**63)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"vocabulary {len(tokenizer):,}, {num_parameters:,} parameters", flush=True)

    def make(step: Demonstration, prompt: str) -> Row:
        return make_row(step, prompt, encode, tokenizer.eos_token_id)

    def save(folder: pathlib.Path) -> None:
        save_model(model, tokenizer.eos_token_id, tokenizer.pad_token_id, folder)
        save_tokenizer(tokenizer, folder)

    def teach(trainer: Trainer, lesson: Lesson, steps: Sequence[Demonstration], number: int) -> None:
        rng = generator(seed, Purpose.MINIBATCH, number)
        batch_size = lesson.stage.batch_size
        batches = BatchMaker(pool(lesson, steps, make), batch_size, syllable_ids(tokenizer), rng, lesson.blur)
        trainer.run(lesson.stage, batches, _report)

    trainer = Trainer(model)
    for number, lesson in enumerate(CLEAN_LESSONS):
        teach(trainer, lesson, clean, number)
    if clean_out is not None:
        save(clean_out)
    # Fresh moments: the old ones belong to another loss.
    teach(Trainer(model), HABIT_LESSON, habitual, len(CLEAN_LESSONS))
    save(out)


def evaluate(folder: pathlib.Path, n: int, threads: int) -> None:
    """Print what the saved policy achieves on the validation panel."""
    config = load_config(PRESET, ())
    for temperature in (0.0, 0.4, 1.0):
        report = run_evaluation(str(folder), config, "validation", n, temperature, 0, threads)
        print(
            f"{folder}  validation n={n} T={temperature:g}: success {report.success:.1%} "
            f"({report.success_low:.1%} to {report.success_high:.1%}), score {report.score:.3f}, "
            f"length {report.episode_length:.2f}, format {report.format_ok:.1%}, admissible {report.admissible:.1%}",
            flush=True,
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.warm_start", description="Build the tiny policy.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, default=DEFAULT_OUT, help="folder, default %(default)s")
    parser.add_argument("--clean-out", type=pathlib.Path, help="also save the policy without bad habits there")
    parser.add_argument("--eval-n", type=int, default=512, help="validation goals to play at the end; 0: none")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)  # more threads than one gain nothing at this size
    print(f"This takes about {MINUTES} minutes on one core.", flush=True)
    began = time.monotonic()
    try:
        build(WebShop(load_config(PRESET, ()).env.webshop), args.seed, args.out, args.clean_out)
        for folder in filter(None, (args.clean_out, args.out)):
            if args.eval_n:
                evaluate(folder, args.eval_n, threads=1)
    except InputError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_INPUT
    print(f"done in {(time.monotonic() - began) / 60:.1f} minutes; {args.out}")
    return EXIT_OK


def _report(progress: Progress) -> None:
    print(
        f"  {progress.stage:9s} step {progress.step:5d}  loss {progress.loss:.4f}  {progress.seconds:5.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
