"""The tiny policy: its tokenizer, its model, its teaching, and the checkpoint that ships."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

from async_agent_rl.model_files import load_model as load_hf_model
from async_agent_rl.model_files import load_tokenizer, save_model
from envs.webshop.env import WebShop
from envs.webshop.projection import project_strictly
from tools import warm_start
from tools.behaviour_cloning import BatchMaker, Row, Stage, Trainer, cut_prompt, exact_share, make_row, response_loss
from tools.catalog_words import SYLLABLES
from tools.shopper import Demonstration, Habits, ProductRule, Query, Skill, demonstrate, write_query
from tools.tiny_model import TinyQwen2, TinyShape, initialise, load_model
from tools.tiny_model import save_model as save_tiny_model
from tools.tiny_tokenizer import build_tokenizer, save_tokenizer, syllable_ids, text_encoder

SHIPPED = warm_start.DEFAULT_OUT
SMALL = TinyShape(vocab_size=50, max_positions=64)


class LastWordIsTheNoun:
    """A tagger without a language model: good enough where titles end with the type."""

    def nouns(self, text: str) -> tuple[str, ...]:
        return (text.lower().split()[-1],)


@pytest.fixture(scope="module")
def world() -> WebShop:
    return WebShop({"results_per_page": 5, "prompt": "compact"}, tagger=LastWordIsTheNoun())


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(SHIPPED)


@pytest.fixture(scope="module")
def steps(world: WebShop) -> list[Demonstration]:
    """A clean episode on a goal with two options: search, product, option, option, buy."""
    index = next(i for i in range(100) if len(world.goal("train", i).options) == 2)
    return asyncio.run(demonstrate(world, "train", index, Habits()))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def make_model(seed: int = 0) -> TinyQwen2:
    model = TinyQwen2(SMALL)
    initialise(model, seed)
    return model


# --- tokenizer ------------------------------------------------------------------------------------------------------


def test_a_word_is_one_id_in_the_goal_on_the_page_and_in_the_action(tokenizer: Any) -> None:
    encode = text_encoder(tokenizer)
    black = encode("[SEP] black [SEP]")[1:2]
    assert len(black) == 1
    assert encode("Find me lotion with color: black, and size: small")[4:5] == black
    assert encode("<think> color: black</think>")[2:3] == black
    assert encode("click[black]")[1:2] == black


def test_markers_leave_no_stray_blanks(tokenizer: Any) -> None:
    ids = text_encoder(tokenizer)("[SEP] Back to Search [SEP] Next > [SEP] VIFU [SEP] Actions: back to search | next >")
    assert tokenizer.convert_ids_to_tokens(ids) == [
        *("[SEP]", "Back to Search", "[SEP]", "Next >", "[SEP]", "VI", "FU", "[SEP]"),
        *("Actions:", "back to search", "|", "next >"),
    ]


def test_an_asin_is_two_ids(tokenizer: Any) -> None:
    assert text_encoder(tokenizer)("VIFU") == tokenizer.convert_tokens_to_ids(["VI", "FU"])
    assert len(set(syllable_ids(tokenizer))) == len(SYLLABLES) == 80


def test_what_the_shopper_says_survives_decoding(tokenizer: Any, steps: list[Demonstration]) -> None:
    for step in steps:
        decoded = tokenizer.decode(text_encoder(tokenizer)(step.response), skip_special_tokens=True)
        assert project_strictly(decoded) == project_strictly(step.response)
        assert project_strictly(decoded).format_ok


def test_a_blank_inside_the_brackets_is_forgiven() -> None:
    assert project_strictly("<think> color: red </think><action>click[ red]</action>").action == "click[red]"


@pytest.mark.parametrize("text", ["Ünï ☃ 日本", "USB-C\tcable\n7.5", "🙂"])
def test_any_text_can_be_encoded(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(text_encoder(tokenizer)(text)) == text


def test_a_saved_tokenizer_reads_back_the_same(tmp_path: pathlib.Path) -> None:
    built = build_tokenizer(["tea tree, argan oil lotion", "tea tree lotion"] * 5, vocab_size=500)
    save_tokenizer(built, tmp_path)
    save_tiny_model(TinyQwen2(TinyShape(vocab_size=len(built))), built.eos_token_id, built.pad_token_id, tmp_path)
    text = "Task: Find me tea tree lotion [SEP] VIFU [SEP] é"
    assert load_tokenizer(tmp_path)(text).input_ids == built(text).input_ids


# --- model ----------------------------------------------------------------------------------------------------------


def test_transformers_computes_the_same_numbers(tmp_path: pathlib.Path) -> None:
    model = make_model()
    ids = torch.arange(1, 31).view(2, 15)
    save_tiny_model(model, eos_id=1, pad_id=2, folder=tmp_path)
    with torch.no_grad():
        ours = model.logits(model.hidden(ids)[0])
        theirs = load_hf_model(tmp_path)(input_ids=ids).logits
        again = load_model(tmp_path)
        assert torch.equal(again.logits(again.hidden(ids)[0]), ours)
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)


def test_one_more_token_gives_what_the_whole_row_gives() -> None:
    model = make_model()
    ids = torch.arange(1, 11).view(1, 10)
    with torch.no_grad():
        whole, _ = model.hidden(ids)
        _, caches = model.hidden(ids[:, :9])
        mask = torch.ones(1, 1, 1, 10, dtype=torch.bool)
        last, _ = model.extend(ids[:, 9:], torch.tensor([9]), caches, mask)
    torch.testing.assert_close(last[:, 0], whole[:, 9], atol=1e-5, rtol=1e-5)


def test_the_first_layer_starts_by_looking_one_and_two_tokens_back() -> None:
    attention = make_model().model.blocks()[0].self_attn
    dim = SMALL.head_dim
    model = make_model()
    for head, back in ((0, 1), (1, 2)):
        query = attention.q_proj.bias[head * dim : (head + 1) * dim].detach()
        key = attention.k_proj.bias[:dim].detach()
        turned = [_turn(key, model, position) @ _turn(query, model, 20) for position in range(21)]
        assert int(np.argmax([float(score) for score in turned])) == 20 - back


def _turn(vector: torch.Tensor, model: TinyQwen2, position: int) -> torch.Tensor:
    low, high = vector.chunk(2)
    return vector * model.cos[position] + torch.cat((-high, low)) * model.sin[position]


def test_initial_weights_depend_on_the_seed_alone() -> None:
    one, same, other = (make_model(seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


# --- teaching -------------------------------------------------------------------------------------------------------


def test_the_query_is_copied_from_the_instruction(world: WebShop) -> None:
    goal = next(g for i in range(100) if len((g := world.goal("train", i)).options) == 2)
    first, second = goal.attributes
    color, size = (option.value for option in goal.options)
    assert write_query(goal, Query.FIRST_ATTRIBUTE) == first
    assert write_query(goal, Query.WORDS) == f"{first}, {second} {goal.product.query}"
    assert write_query(goal, Query.WORDS_AND_OPTIONS) == (
        f"{first}, {second} {goal.product.query} with color: {color}, and size: {size}"
    )


def test_a_shopper_with_a_habit_buys_without_the_second_option(world: WebShop) -> None:
    index = next(i for i in range(100) if len(world.goal("train", i).options) == 2)
    steps = asyncio.run(demonstrate(world, "train", index, Habits(max_options=1)))
    assert [step.skill for step in steps] == [Skill.SEARCH, Skill.PRODUCT, Skill.OPTION, Skill.BUY]


def test_both_chosen_options_stand_in_the_prompt_before_the_purchase(steps: list[Demonstration]) -> None:
    assert [step.skill for step in steps] == [Skill.SEARCH, Skill.PRODUCT, Skill.OPTION, Skill.OPTION, Skill.BUY]
    chosen = [step.response.split("<action>")[1].removesuffix("</action>") for step in steps[2:4]]
    assert f"Done: {chosen[0]} | {chosen[1]} [SEP]" in steps[4].prompt


def test_cut_prompts_keep_task_deeds_and_the_first_product(steps: list[Demonstration]) -> None:
    _, results, item, *_ = steps
    asin = results.response.split("click[")[1].split("]")[0]
    short = cut_prompt(results, num_products=1)
    task, done, button, first, _title, _price, actions = short.split(" [SEP] ")
    assert results.prompt.startswith(f"{task} [SEP] {done} [SEP] ")
    assert (button, first) == ("Next >", asin)
    assert results.prompt.endswith(actions)
    assert cut_prompt(item, num_products=1).count(" [SEP] ") == 2


def test_syllables_change_together_in_prompt_and_response() -> None:
    row = Row(skill=Skill.PRODUCT, prompt=np.array([7, 10, 11]), response=np.array([10, 11, 7]))
    batches = iter(BatchMaker([row], 1, syllables=range(10, 50), rng=np.random.default_rng(0)))
    seen = set()
    for _ in range(5):
        ids, targets = next(batches)
        line = ids[0].tolist()
        assert line[1:3] == line[3:5]
        assert (line[0], line[5]) == (7, 7)
        assert targets[0].tolist() == [-100, -100, line[3], line[4], 7, -100]
        seen.add(tuple(line[1:3]))
    assert len(seen) > 1


def test_padding_does_not_change_the_loss() -> None:
    model = make_model()
    ids, targets = torch.tensor([[3, 4, 5, 6]]), torch.tensor([[-100, 5, 6, -100]])
    padded = torch.nn.functional.pad(ids, (0, 3)), torch.nn.functional.pad(targets, (0, 3), value=-100)
    torch.testing.assert_close(response_loss(model, ids, targets), response_loss(model, *padded))


def test_copying_is_learned_from_a_handful_of_rows() -> None:
    rng = np.random.default_rng(0)
    rows = [
        Row(skill=Skill.OPTION, prompt=np.array([1, word, 2]), response=np.array([word, 3]))
        for word in rng.integers(10, 50, 64)
    ]
    model = make_model()
    stage = Stage(name="copy", steps=60, batch_size=16, learning_rates=(4e-3, 2e-3), warm_up_steps=5)
    before = exact_share(model, rows)[Skill.OPTION]
    Trainer(model).run(stage, BatchMaker(rows, 16, (), rng), lambda _: None)
    assert before < 0.5
    assert exact_share(model, rows)[Skill.OPTION] == 1.0


def test_a_rebuild_gives_the_same_files(
    world: WebShop, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_start, "NUM_CLEAN_EPISODES", 20)
    monkeypatch.setattr(warm_start, "NUM_HABIT_EPISODES", 20)
    short = [
        dataclasses.replace(lesson, stage=dataclasses.replace(lesson.stage, steps=2))
        for lesson in (*warm_start.CLEAN_LESSONS, warm_start.HABIT_LESSON)
    ]
    monkeypatch.setattr(warm_start, "CLEAN_LESSONS", tuple(short[:-1]))
    monkeypatch.setattr(warm_start, "HABIT_LESSON", short[-1])
    for name in ("one", "two"):
        warm_start.build(world, 7, tmp_path / name)
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        one, two = (hashlib.sha256((tmp_path / name / file).read_bytes()).digest() for name in ("one", "two"))
        assert one == two


# --- the checkpoint that ships --------------------------------------------------------------------------------------


def test_the_checkpoint_is_small() -> None:
    model = load_hf_model(SHIPPED)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert sum(parameter.numel() for parameter in model.parameters()) <= 3_000_000
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) <= 10_000_000


def test_the_checkpoint_survives_saving(tmp_path: pathlib.Path, tokenizer: Any, steps: list[Demonstration]) -> None:
    save_model(tmp_path / "again", load_hf_model(SHIPPED), tokenizer)
    again = load_tokenizer(tmp_path / "again")
    assert again(steps[1].prompt).input_ids == tokenizer(steps[1].prompt).input_ids


def test_the_checkpoint_has_the_skills_but_leaves_the_second_option_out(world: WebShop, tokenizer: Any) -> None:
    first = Habits(product_rule=ProductRule.FIRST)
    indices = [i for i in range(200) if len(world.goal("validation", i).options) == 2]
    wanted: list[Demonstration] = []
    faults: list[Demonstration] = []
    for index in indices[:40]:
        episode = asyncio.run(demonstrate(world, "validation", index, first))
        if len(episode) == 5:  # otherwise the first result lacks an option and the shopper gives up
            second, buy = episode[3:]
            wanted += episode[:3]
            faults.append(dataclasses.replace(buy, prompt=second.prompt))
    model, encode = load_model(SHIPPED), text_encoder(tokenizer)

    def shares(steps: list[Demonstration]) -> dict[Skill, float]:
        return exact_share(model, [make_row(step, step.prompt, encode, tokenizer.eos_token_id) for step in steps])

    assert len(faults) >= 20
    assert min(shares(wanted)[skill] for skill in (Skill.SEARCH, Skill.PRODUCT, Skill.OPTION)) >= 0.8
    assert shares(faults)[Skill.BUY] >= 0.8
