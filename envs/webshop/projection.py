"""Reads an action out of a model's response: `<think>..</think><action>..</action>`.

Knows nothing of the open page: whether the action is possible there is another question, answered by the session.
"""

from __future__ import annotations

import dataclasses
import re

from envs.webshop.session import parse_action

NO_ACTION = "noop"
"""What a response without a readable action does: nothing, in any state."""
_TAIL_CHARS = 20
_CHINESE = re.compile("[\u4e00-\u9fff]")


@dataclasses.dataclass(frozen=True, slots=True)
class Projection:
    """The action of a response."""

    action: str
    format_ok: bool
    """The response had the demanded form."""


def project_strictly(response: str) -> Projection:
    """Demand thoughts in think tags and then, after the last of them, exactly one action that is not empty.

    The action is lower-cased, and blanks around it and around its argument are dropped, because tokenizers put them
    there (`click[ red ]` is `click[red]`). A response of any other form does nothing.
    """
    text = response.lower()
    thoughts, closed, tail = text.rpartition("</think>")
    opened = "<think>" in thoughts
    parts = re.split(r"(</?action>)", tail)
    if not (closed and opened) or parts[1::2] != ["<action>", "</action>"] or not parts[2].strip():
        return Projection(NO_ACTION, format_ok=False)
    action = parts[2].strip()
    name, argument = parse_action(action)
    return Projection(action if argument is None else f"{name}[{argument.strip()}]", format_ok=True)


def project_like_verl_agent(response: str) -> Projection:
    """verl-agent's reading: the first tags of each kind wherever they stand, or else the end of the text.

    Without both action tags the last 20 characters are the action, and the form is wrong. A closing tag before the
    opening one gives an empty action of right form. Missing think tags (in lower case) or a Chinese character make
    the form wrong, but the action still counts.
    """
    text = response.lower()
    start, end = text.find("<action>"), text.find("</action>")
    if start < 0 or end < 0:
        return Projection(text[-_TAIL_CHARS:], format_ok=False)
    action = text[start + len("<action>") : end].strip()
    has_thoughts = "<think>" in response and "</think>" in response
    return Projection(action, format_ok=has_thoughts and not _CHINESE.search(response))
