"""Small functions of the original's web site that its text environment never calls.

People port code and data against them, so they are here, exact; the environment does not import this module.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable
from pathlib import Path

from envs.webshop.fuzzy import COLORS

NOT_MATCHED = "not_matched"
NUMERIC_SIZE = "numeric_size"

# In this order; what is found first is the size's name. `x-large` is inside `xx-large`, hence not alphabetical.
_SIZE_WORDS = (
    *("xx-large", "3x-large", "4x-large", "5x-large", "x-large", "x-small", "medium", "large", "small"),
    *("queen", "twin", "full", "king", "one size", "pack"),
)
_SIZE_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        *(r"(.*)neck(.*)sleeve", r"(.*) women \| (.*) men", r"(.*)w x(.*)l", r"(.*)w by (.*)l", r"(.*)w x(.*)h"),
        *(r"(.*)wide", r"(.*)x-wide", r"(.*)narrow", r"(.*)petite", r"(.*)inch", r"(.*)plus", r"(.*)mm"),
        *(r"women(.*)", r"(.*)x(.*)", r"(.*)ft", r"(.*)feet", r"(.*)meter", r"(.*)yards", r"(.*)\*(.*)", r"(.*)\-(.*)"),
        *(r'(\d+)"$', r"(\d+)f$", r"(\d+)m$", r"(\d+)cm$", r"(\d+)g$"),
    )
)


def map_colors(colors: Iterable[str]) -> dict[str, str]:
    """Lower-cased color -> the first color name in it, or `not_matched`; `N.A.` is always there (spec, section 5.4)."""
    named = {color.lower(): next((name for name in COLORS if name in color.lower()), NOT_MATCHED) for color in colors}
    return {"N.A.": NOT_MATCHED} | named


def map_sizes(sizes: Iterable[str]) -> dict[str, str]:
    """Lower-cased size -> the word or pattern it was recognised by, `numeric_size`, or `not_matched`."""
    return {"N.A.": NOT_MATCHED} | {size.lower(): _size_name(size.lower()) for size in sizes}


def _size_name(size: str) -> str:
    for word in _SIZE_WORDS:
        if word in size:
            return word
    for pattern in _SIZE_PATTERNS:
        if pattern.search(size):
            return pattern.pattern
    return NUMERIC_SIZE if size.replace(".", "", 1).isdigit() else NOT_MATCHED


def completion_code(session_id: str) -> str:
    """What a worker pasted as proof of a finished session: ten upper-case hex digits."""
    return hashlib.sha1(session_id.encode(), usedforsecurity=False).hexdigest()[:10].upper()


def session_logger(session_id: str, folder: Path) -> logging.Logger:
    """A logger at INFO that writes bare messages to <folder>/<session_id>.jsonl; the caller closes its handler."""
    logger = logging.getLogger(f"webshop.{session_id}")
    handler = logging.FileHandler(folder / f"{session_id}.jsonl")
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return logger
