"""The four ways WebShop shows a page: `text`, `text_rich`, `html` and `url`.

Knows nothing of prompts. Whatever the mode, the state behind the page is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

from envs.webshop.address import address
from envs.webshop.html import render_html
from envs.webshop.pages import Page, SegmentKind
from envs.webshop.session import Session

ObservationMode = Literal["text", "text_rich", "html", "url"]


def observe(session: Session, mode: ObservationMode) -> str:
    """The open page in one of WebShop's observation modes."""
    return _MODES[mode](session)


def render_rich(page: Page, url: str, visited: Collection[str]) -> str:
    """The `text_rich` observation: one text node a line, buttons in brackets.

    Args:
        page: what is open.
        url: its address. An option counts as clicked when the address holds it in double quotes: WebShop's rule, which
            misses options that JSON escapes, and takes a quoted search word for a choice.
        visited: asins of products that were opened.
    """
    lines: list[str] = []
    clicked: list[str] = []
    for text, kind in page.segments:
        if kind is SegmentKind.TEXT:
            lines.append(text)
        elif kind is SegmentKind.BUTTON:
            lines.append(_bracket(text, is_clicked=False))
        elif kind is SegmentKind.PRODUCT:
            lines.append("\n" + _bracket(text, is_clicked=text in visited))
        else:
            is_clicked = f'"{text}"' in url
            lines.append("  " + _bracket(text, is_clicked=is_clicked))
            if is_clicked:
                clicked.insert(0, f"You have clicked {text}.")
    return "".join(f"{line}\n" for line in (*clicked, *lines))


def _bracket(text: str, *, is_clicked: bool) -> str:
    return f"[clicked button] {text} [clicked button_]" if is_clicked else f"[button] {text} [button_]"


_MODES: dict[ObservationMode, Callable[[Session], str]] = {
    "text": lambda session: session.page.text,
    "text_rich": lambda session: render_rich(session.page, address(session), session.visited),
    "html": render_html,
    "url": address,
}
