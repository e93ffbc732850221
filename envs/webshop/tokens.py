"""Text to search terms, the way Lucene's English analyzer does it.

Steps: word breaks of Unicode's UAX #29 (the parts that matter for shop texts), possessive 's off, lower case, 33 stop
words out, Porter stems. Known gaps: emoji give no term, and Thai-like scripts stay in one piece.
"""

from __future__ import annotations

import functools
import re

import Stemmer

_STOP_WORDS = """
a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was
will with
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())

_MARKS = "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f\u00ad\u200d"
# Each of these characters is a term of its own: Han, Hiragana.
_SINGLE = (
    "\u2e80-\u2fdf\u3005\u3007\u3021-\u3029\u3038-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
# Superscripts, fractions and circled digits are word characters to Python but not to UAX #29.
_NOT_WORD = "²³¹¼½¾⁰⁴-⁹₀-₉⅐-⅟①-⒛⓪-⓿❶-➓"
_LETTER = rf"[^\W\d_{_SINGLE}{_NOT_WORD}]"
_BETWEEN_BOTH = r"'.\u2018\u2019\u2024\ufe52\uff07\uff0e"
_BETWEEN_LETTERS = rf"[{_BETWEEN_BOTH}:\u00b7\u0387\u2027\ufe13\ufe55\uff1a]"
_BETWEEN_DIGITS = rf"[{_BETWEEN_BOTH},;\u066c\u2044\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b]"
_WORD = re.compile(
    rf"[{_SINGLE}]|"
    rf"(?:{_LETTER}|\d|_)"
    rf"(?:{_LETTER}|[\d_{_MARKS}]"
    rf"|(?<=[^\W\d_]){_BETWEEN_LETTERS}(?={_LETTER})"
    rf"|(?<=\d){_BETWEEN_DIGITS}(?=\d))*"
)
_ASCII_WORD = re.compile(r"[a-z0-9_]+(?:(?:(?<=[a-z])['.:](?=[a-z])|(?<=[0-9])['.,;](?=[0-9]))[a-z0-9_]+)*")
_POSSESSIVE = re.compile(r"['\u2019\uff07]s$")
_VOWEL_THEN_CONSONANT = re.compile(r"(?:[aeiou]|(?<=[^aeiou])y).*?(?:[^aeiouy]|(?<=[aeiou])y)")
_SHORTEST_STEMMED = 3


def terms(text: str) -> list[str]:
    """The search terms of a text, in order, with repetitions."""
    return [term for term in map(term_of, words(text)) if term is not None]


def words(text: str) -> list[str]:
    """The pieces between word breaks that can hold a term, in lower case."""
    lowered = text.lower()
    # The same rule without the letters that cannot occur; most shop texts are plain, and it is several times as fast.
    return (_ASCII_WORD if lowered.isascii() else _WORD).findall(lowered)


def term_of(word: str) -> str | None:
    """The search term of one of `words`; None where it is a stop word or nothing but signs."""
    stripped = _POSSESSIVE.sub("", word) if word.strip("_") else ""
    return _stem(stripped) if stripped and stripped not in STOP_WORDS else None


@functools.lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    """Porter's stem, with his later rules for -bli and -logi that the stemmer package leaves out."""
    if len(word) < _SHORTEST_STEMMED:
        return word
    for endings, replacement in ((("bly", "bli"), "ble"), (("logies", "logy", "logi"), "log")):
        for ending in endings:
            # Both rules apply from a measure of one on: a vowel, later a consonant, before the ending.
            if word.endswith(ending) and _VOWEL_THEN_CONSONANT.search(word[: -len(ending)]):
                return str(_porter().stemWord(word[: -len(ending)] + replacement))
    return str(_porter().stemWord(word))


@functools.cache
def _porter() -> Stemmer.Stemmer:
    return Stemmer.Stemmer("porter")
