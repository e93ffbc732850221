"""What the model is told: the task, what was done, the page, and what it may do.

Two forms: `verl_agent` has the contents of verl-agent's WebShop prompt in words of our own; `compact` is one short line
for models of a few hundred thousand parameters. Knows nothing of tokens or chat templates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from envs.memory import Memory, Record
from envs.webshop.pages import SEPARATOR, Page, SegmentKind

SEARCH_ENTRY = "search[...]"
"""How the search bar is listed among the admissible actions; the dots stand for words of the agent's own."""
MAX_CHARS = 13_000
"""verl-agent's limit for a prompt with history; at exactly this length the history still stands."""

PromptForm = Literal["verl_agent", "compact"]


def build_prompts(
    form: PromptForm,
    instruction: str,
    page: Page,
    memory: Memory,
    history: int,
    *,
    limit_chars: bool,
    shown: str | None = None,
) -> tuple[str, ...]:
    """The user message in its variants, most history first, none last.

    Args:
        form: which wording.
        instruction: of the goal.
        page: what is open now.
        memory: the steps so far.
        history: at most so many of them are told.
        limit_chars: verl-agent's rule: all the history, or none of it where the message has more than MAX_CHARS
            characters; without it there is one variant per length of history.
        shown: the page as the model sees it; by default as `format_page` has it. `compact` shows its own.
    """
    text = format_page(page, instruction) if shown is None else shown

    def write(records: Sequence[Record]) -> str:
        return _FORMS[form](instruction, page, text, records, memory.num_steps)

    most = len(memory.last(history))
    if not limit_chars:
        lengths = range(most, -1, -1)
        return tuple(write(memory.last(length)) for length in lengths)
    full = write(memory.last(most))
    if most == 0:
        return (full,)
    bare = write(())
    return (bare,) if len(full) > MAX_CHARS else (full, bare)


def admissible_actions(page: Page) -> tuple[str, ...]:
    """Everything the page offers, written as actions. `click[search]` does nothing and is left out."""
    clicks = tuple(f"click[{argument}]" for argument in page.clickables if argument != "search")
    return (SEARCH_ENTRY, *clicks) if page.has_search_bar else clicks


def format_page(page: Page, instruction: str) -> str:
    """The page without the task, each segment in quotes; the page of a purchase, which has no task, as it is."""
    content = _content(page, instruction)
    return page.text if content is None else SEPARATOR.join(f"'{text}'" for text in content)


def _content(page: Page, instruction: str) -> tuple[str, ...] | None:
    """The segments after the instruction; None where the page does not show it."""
    task = instruction.strip()
    return page.texts[page.texts.index(task) + 1 :] if task in page.texts else None


def _write_verl_agent(instruction: str, page: Page, shown: str, records: Sequence[Record], num_steps: int) -> str:
    story = ""
    if records:
        told = "\n".join(
            f"[Observation {record.number}: '{record.observation}', Action {record.number}: '{record.action}']"
            for record in records
        )
        story = (
            f"\nSteps taken so far: {num_steps}. What you saw and did in the last {len(records)} of them:\n{told}\n"
            f"Now comes step {num_steps + 1}."
        )
    actions = "\n".join(f"'{action}'," for action in admissible_actions(page))
    return (
        "\nYou are an expert at buying things in WebShop, an online store, and act for a customer.\n"
        f"The customer's request: {instruction}{story}\n"
        f"The page in front of you: {shown}\n"
        f"What you can do here:\n[\n{actions}\n]\n"
        f"(In {SEARCH_ENTRY} put search words of your own in place of the dots.)\n\n"
        "First reason step by step about the request and the page, inside <think> and </think>. "
        "Then choose one of the actions above and write it inside <action> and </action>.\n"
    )


def _write_compact(instruction: str, page: Page, shown: str, records: Sequence[Record], num_steps: int) -> str:
    content = _content(page, instruction)
    buttons = [segment.text.lower() for segment in page.segments if segment.kind is SegmentKind.BUTTON]
    offers = [SEARCH_ENTRY] if page.has_search_bar else []
    offers += [button for button in buttons if button != "search"]
    pieces = (
        f"Task: {instruction}",
        f"Done: {' | '.join(record.action for record in records) or 'none'}",
        *(page.texts if content is None else content),
        f"Actions: {' | '.join(offers) or 'none'}",
    )
    return SEPARATOR.join(" ".join(piece.splitlines()) for piece in pieces)


_FORMS: dict[PromptForm, Callable[[str, Page, str, Sequence[Record], int], str]] = {
    "verl_agent": _write_verl_agent,
    "compact": _write_compact,
}
