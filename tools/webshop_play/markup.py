"""HTML that cannot be injected into: every text is escaped when it becomes part of an element.

Knows nothing of what is shown.
"""

from __future__ import annotations

import html

_VOID = frozenset({"input", "link", "meta", "br", "hr"})
# XML and HTML forbid them, and a browser shows nothing sensible for them.
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0: 0xFFFD, 0x7F: 0x2421}


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | None
"""Plain text is escaped, Markup is not, None is left out."""


def element(tag: str, /, *children: Child, **attributes: str | bool | int | None) -> Markup:
    """One element.

    Args:
        tag: its name.
        children: in order.
        attributes: `class_` is written class, other underscores become hyphens; True writes the bare name, False and
            None leave it out.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if tag in _VOID:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{join(*children)}</{tag}>")


def join(*children: Child) -> Markup:
    """Children without an element around them."""
    return Markup("".join(_escaped(child) for child in children if child is not None))


def _escaped(child: str) -> str:
    return child if isinstance(child, Markup) else html.escape(_clean(child))


def _attribute(key: str, value: str | bool | int | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{html.escape(_clean(str(value)))}"'


def _clean(text: str) -> str:
    # A lone surrogate, which JSON may hold, cannot be sent.
    return text.translate(_CONTROLS).encode("utf-8", "replace").decode()
