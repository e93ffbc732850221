"""How alike two short texts are, and which colour a text names: the two leniencies of WebShop's reward.

The score is the one of thefuzz 0.19 without its C helper, on which WebShop's thresholds were set. Later releases
measure another distance, so the formula is written out here and does not depend on what is installed.
"""

from __future__ import annotations

import difflib
import functools
import re

MATCH_ABOVE = 85
"""Two texts count as the same from the next integer on."""

_LATIN_1 = re.compile(r"[\x80-\xff]")
_NOT_WORD = re.compile(r"\W")

_COLORS = """
alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo caramel
champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal dark denim
eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory ivy khaki
lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom mustard
natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire seashell silver
skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut wheat white wine yellow
"""
COLORS = tuple(_COLORS.split())
"""WebShop's colour names; the order decides which one a text is taken for."""


def color_of(text: str) -> str:
    """The first colour name inside the text, or the text itself. `tan` is inside `standard`: that is WebShop's rule."""
    return next((color for color in COLORS if color in text), text)


def color_of_pair(group: str, value: str) -> str | None:
    """The first colour name that equals the group or the value as a whole, if any."""
    return next((color for color in COLORS if color in (group, value)), None)


def is_alike(left: str, right: str) -> bool:
    """Whether WebShop takes the two texts for the same attribute or option value."""
    return token_set_ratio(left, right) > MATCH_ABOVE


@functools.lru_cache(maxsize=65_536)
def token_set_ratio(left: str, right: str) -> int:
    """Likeness of two sets of words in [0, 100]; 100 when one set holds the other, 0 when a side has no words."""
    left_words, right_words = _words(left), _words(right)
    if not left_words or not right_words:
        return 0
    shared = " ".join(sorted(left_words & right_words))
    whole_left = " ".join([shared, *sorted(left_words - right_words)]).strip()
    whole_right = " ".join([shared, *sorted(right_words - left_words)]).strip()
    return max(_ratio(shared, whole_left), _ratio(shared, whole_right), _ratio(whole_left, whole_right))


def _words(text: str) -> set[str]:
    return set(_NOT_WORD.sub(" ", _LATIN_1.sub("", text)).lower().split())


def _ratio(left: str, right: str) -> int:
    if not left or not right:
        return 0
    return round(100 * difflib.SequenceMatcher(None, left, right).ratio())
