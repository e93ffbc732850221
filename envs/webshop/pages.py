"""The pages of the shop as lists of typed segments, and their plain text.

A page is built straight from the state, without HTML; the segments are those that WebShop's `text` observation takes
out of its HTML. Knows nothing of sessions, and nothing of who reads the page.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from envs.webshop.catalog import Product

SEPARATOR = " [SEP] "
INSTRUCTION_LABEL = "Instruction:"

# What WebShop's HTML parser (BeautifulSoup) takes for blank; a vertical tab is not in it.
_BLANKS = " \t\n\r\f"


class SegmentKind(enum.IntEnum):
    """What a piece of a page is, for renderings that mark what can be clicked."""

    TEXT = 0
    BUTTON = 1
    PRODUCT = 2
    """An asin that leads to the product."""
    OPTION = 3


class Segment(NamedTuple):
    """One text node of a page, with its outer blanks."""

    text: str
    kind: SegmentKind = SegmentKind.TEXT


class Detail(enum.StrEnum):
    """What can be read about a product beyond its own page; the values are the labels of the buttons."""

    DESCRIPTION = "Description"
    FEATURES = "Features"
    REVIEWS = "Reviews"
    ATTRIBUTES = "Attributes"


@dataclasses.dataclass(frozen=True)
class Page:
    """What the agent sees and what it may click."""

    segments: tuple[Segment, ...]
    has_search_bar: bool = False

    @functools.cached_property
    def texts(self) -> tuple[str, ...]:
        """The segments of the `text` observation; an empty bullet is an empty text."""
        return tuple(segment.text.strip() for segment in self.segments)

    @property
    def text(self) -> str:
        """WebShop's observation in mode `text`."""
        return SEPARATOR.join(self.texts)

    @functools.cached_property
    def clickables(self) -> tuple[str, ...]:
        """Lower-cased arguments that `click[...]` takes: buttons, then products, then options; each once.

        `search` is listed on the search page, as in WebShop, though clicking it does nothing.
        """
        return tuple(
            dict.fromkeys(
                segment.text.lower()
                for kind in (SegmentKind.BUTTON, SegmentKind.PRODUCT, SegmentKind.OPTION)
                for segment in self.segments
                if segment.kind is kind
            )
        )


BACK = Segment("Back to Search", SegmentKind.BUTTON)
PREVIOUS = Segment("< Prev", SegmentKind.BUTTON)
NEXT = Segment("Next >", SegmentKind.BUTTON)
BUY = Segment("Buy Now", SegmentKind.BUTTON)


def search_page(instruction: str) -> Page:
    """The start of every episode."""
    label = Segment(INSTRUCTION_LABEL + " ")
    button = Segment("Search", SegmentKind.BUTTON)
    return Page((Segment("WebShop"), label, *_nodes(instruction), button), has_search_bar=True)


def results_page(instruction: str, number: int, num_hits: int, products: Iterable[Product]) -> Page:
    """Page `number` (1-based) of a hit list of `num_hits`; `products` are those on this page.

    `Next >` is always there, even behind the last hit.
    """
    segments = [*_header(instruction), Segment(f"Page {number} (Total results: {num_hits})")]
    segments += [PREVIOUS, NEXT] if number > 1 else [NEXT]
    for product in products:
        segments.append(Segment(product.asin, SegmentKind.PRODUCT))
        segments += _nodes(product.title, product.price_text)
    return Page(tuple(segments))


def item_page(instruction: str, product: Product, *, show_attributes: bool) -> Page:
    """A product's own page. Which options are chosen is not shown: that is WebShop's `text` mode."""
    segments = [*_header(instruction), PREVIOUS]
    for group in product.options:
        segments += _nodes(group.name)
        segments += [Segment(value, SegmentKind.OPTION) for value in group.values if value]
    segments += _nodes(product.title, f"Price: {product.price_text}", "Rating: N.A.")
    segments += [_detail_button(detail) for detail in Detail if show_attributes or detail is not Detail.ATTRIBUTES]
    segments.append(BUY)
    return Page(tuple(segments))


def detail_page(instruction: str, product: Product, detail: Detail) -> Page:
    """A sub-page of a product. There are no reviews in WebShop's data, so that page is always empty."""
    texts: Sequence[str] = ()
    if detail is Detail.DESCRIPTION:
        texts = (product.description,)
    elif detail is Detail.FEATURES:
        texts = [f" {bullet}" for bullet in product.bullets]
    elif detail is Detail.ATTRIBUTES:
        texts = (*product.attributes, product.category, product.query, product.product_category)
    return Page((*_header(instruction), PREVIOUS, *_nodes(*texts)))


def done_page(asin: str, options: Mapping[str, str], reward: float) -> Page:
    """The page after a purchase. It prints the reward; what the original leaves unfilled reads `None`."""
    chosen = json.dumps(options, sort_keys=True)
    for sign in "<>&'":
        chosen = chosen.replace(sign, f"\\u{ord(sign):04x}")
    bought = ("Purchased", "asin", asin, "options", chosen, "attrs", "None", "category", "None", "query", "None")
    wanted = ("asin", "options", "attrs", "price upper", "instuction text", "category", "product category", "query")
    texts = (
        *("Thank you for shopping with us!", "Your code: ", "None", " (Paste it in your MTurk interface.)"),
        *(*bought, "product category", "None", "Target", *wanted, "Goal ", "None"),
        *("Reward", "Your score (min 0.0, max 1.0)", str(float(reward)), "Reward Details ", "None"),
    )
    return Page(tuple(Segment(text) for text in texts))


def _header(instruction: str) -> tuple[Segment, ...]:
    return (Segment(INSTRUCTION_LABEL), *_nodes(instruction), BACK)


def _detail_button(detail: Detail) -> Segment:
    return Segment(detail.value, SegmentKind.BUTTON)


def _nodes(*texts: str) -> list[Segment]:
    """The text nodes WebShop's HTML parser keeps: none of an empty text; a blank one is one blank, or, with a line
    break in it, nothing."""
    return [
        Segment(text if text.strip(_BLANKS) else " ")
        for text in texts
        if text and (text.strip(_BLANKS) or "\n" not in text)
    ]
