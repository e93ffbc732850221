"""What the model is told, in both forms and with shrinking history."""

from __future__ import annotations

import pytest

from envs.memory import Memory
from envs.webshop.pages import Detail, Page, detail_page, done_page, item_page, results_page, search_page
from envs.webshop.prompt import MAX_CHARS, PromptForm, admissible_actions, build_prompts, format_page
from tests.webshop_samples import make_product

TASK = "find me a table, and price lower than 40.00 dollars"
ITEM = item_page(TASK, make_product(options={"size": ["small", "large"]}), show_attributes=False)


def remembered(*actions: str) -> Memory:
    memory = Memory(2)
    for action in actions:
        memory.add("'page'", action)
    return memory


def prompts(
    form: PromptForm, page: Page, memory: Memory, *, history: int = 2, limit_chars: bool = False
) -> tuple[str, ...]:
    return build_prompts(form, TASK, page, memory, history, limit_chars=limit_chars)


def test_the_page_is_told_without_the_task_and_in_quotes() -> None:
    assert format_page(search_page(TASK), TASK) == "'Search'"
    features = detail_page(TASK, make_product(bullets=("", "oak")), Detail.FEATURES)
    assert format_page(features, TASK) == "'Back to Search' [SEP] '< Prev' [SEP] '' [SEP] 'oak'"


def test_the_page_of_a_purchase_is_told_as_it_is() -> None:
    page = done_page("A1", {}, 1.0)
    assert format_page(page, TASK) == page.text
    assert page.text.startswith("Thank you for shopping with us! [SEP] Your code:")


def test_admissible_actions_are_those_of_the_page_without_the_idle_one() -> None:
    assert admissible_actions(search_page(TASK)) == ("search[...]",)
    assert admissible_actions(results_page(TASK, 1, 1, [make_product("B1")])) == (
        *("click[back to search]", "click[next >]", "click[b1]"),
    )
    assert admissible_actions(ITEM)[-3:] == ("click[buy now]", "click[small]", "click[large]")
    assert admissible_actions(done_page("A1", {}, 1.0)) == ()


def test_the_compact_form_is_one_line_of_known_shape() -> None:
    assert prompts("compact", search_page(TASK), remembered()) == (
        f"Task: {TASK} [SEP] Done: none [SEP] Search [SEP] Actions: search[...]",
    )
    first, second, third = prompts("compact", ITEM, remembered("search[oak]", "click[a1]", "click[small]"))
    page = (
        "Back to Search [SEP] < Prev [SEP] size [SEP] small [SEP] large [SEP] Oak Table [SEP] Price: $35.0 [SEP] "
        "Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
    )
    actions = "back to search | < prev | description | features | reviews | buy now"
    assert first == f"Task: {TASK} [SEP] Done: click[a1] | click[small] [SEP] {page} [SEP] Actions: {actions}"
    assert second == first.replace("click[a1] | ", "")
    assert third == first.replace("click[a1] | click[small]", "none")


def test_the_compact_form_breaks_no_line() -> None:
    page = detail_page(TASK, make_product(description="two\nlines  wide"), Detail.DESCRIPTION)
    (prompt,) = prompts("compact", page, remembered())
    assert "< Prev [SEP] two lines  wide [SEP] Actions: back to search | < prev" in prompt


def test_the_full_form_tells_everything_it_should() -> None:
    memory = remembered("search[oak]", "noop", "click[a1]")
    first, second, third = prompts("verl_agent", ITEM, memory)
    for prompt in (first, second, third):
        assert prompt.startswith("\n")
        assert prompt.endswith("\n")
        assert f"The customer's request: {TASK}\n" in prompt
        assert f"The page in front of you: {format_page(ITEM, TASK)}\n" in prompt
        assert "[\n'click[back to search]',\n'click[< prev]',\n" in prompt
        assert all(tag in prompt for tag in ("<think>", "</think>", "<action>", "</action>"))
    assert "Steps taken so far: 3." in first
    assert "[Observation 2: ''page'', Action 2: 'noop']\n[Observation 3: ''page'', Action 3: 'click[a1]']\n" in first
    assert "Now comes step 4." in first
    assert "Observation 2" not in second
    assert "Observation 3" in second
    assert "Observation" not in third
    assert "Steps taken" not in third


@pytest.mark.parametrize(
    ("num_steps", "history", "num_variants"), [(0, 2, 1), (1, 2, 2), (2, 2, 3), (5, 2, 3), (5, 1, 2), (5, 0, 1)]
)
@pytest.mark.parametrize("form", ["verl_agent", "compact"])
def test_there_is_a_variant_for_each_length_of_history(
    form: PromptForm, num_steps: int, history: int, num_variants: int
) -> None:
    variants = prompts(form, ITEM, remembered(*["click[a1]"] * num_steps), history=history)
    assert len(set(variants)) == len(variants) == num_variants
    assert sorted(variants, key=len, reverse=True) == list(variants) or form == "compact"


@pytest.mark.parametrize(("num_chars", "keeps_history"), [(MAX_CHARS, True), (MAX_CHARS + 1, False)])
def test_history_is_dropped_whole_above_thirteen_thousand_characters(num_chars: int, keeps_history: bool) -> None:
    def variants(padding: int) -> tuple[str, ...]:
        memory = Memory(2)
        memory.add("x" * padding, "noop")
        memory.add("y", "noop")
        return prompts("verl_agent", ITEM, memory, limit_chars=True)

    short = variants(0)
    assert [text.count("Observation") for text in short] == [2, 0]
    got = variants(num_chars - len(short[0]))
    assert len(got[0]) == (num_chars if keeps_history else len(short[1]))
    assert got[-1] == short[1]


def test_the_character_limit_does_not_touch_a_first_step() -> None:
    assert prompts("verl_agent", ITEM, remembered(), limit_chars=True) == prompts("verl_agent", ITEM, remembered())
