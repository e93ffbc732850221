"""Lines in, lines out: a terminal that may as well be a pipe.

Knows nothing of shops.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import rich.console
from rich.text import Text

# Control signs of a recorded response or a product must not reach the terminal: they show as U+2400 and following.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_VISIBLE |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def visible(text: str, style: str = "") -> Text:
    """The text with nothing in it that a terminal would obey, and without reading rich's own markup in it."""
    return Text(text.translate(_VISIBLE), style=style)


def make_console() -> rich.console.Console:
    """Standard output for people; what its encoding cannot say is replaced."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    return rich.console.Console(highlight=False)


ReadLine = Callable[[str], str | None]
"""Shows a prompt and gives the next line without its end; None at the end of the input."""


def read_line(prompt: str) -> str | None:
    """The next line of standard input; at a pipe the prompt is left out."""
    if sys.stdin.isatty():
        try:
            return input(prompt)
        except EOFError:
            return None
    line = sys.stdin.readline()
    return line.rstrip("\r\n") if line else None
