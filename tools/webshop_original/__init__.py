"""A plain re-enactment of what the original WebShop does in every step of its text environment, for benchmarks.

Per step: find out what can be clicked by parsing the open page, read a template file, compile it, render the next page
with a link per product and option, parse that page, and join its texts. No search, no reward. Ours in wording; the
work is that of the original as measured in its own process (results page 23 ms, item page 19 ms on two cores).
"""

from __future__ import annotations

import json
import pathlib
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

import bs4
import jinja2

from envs.webshop.catalog import Product

_FOLDER = pathlib.Path(__file__).parent
_ENVIRONMENT = jinja2.Environment(autoescape=True)
_HIDDEN = frozenset({"style", "script", "head", "title", "meta", "[document]"})


class OriginalSteps:
    """The pages of one session, as the original makes and reads them."""

    def __init__(self, session_id: str, instruction: str) -> None:
        self._session_id = session_id
        self._instruction = instruction
        self._html = "<html><body><button>Search</button></body></html>"

    def open_results(self, keywords: Sequence[str], number: int, num_hits: int, products: Sequence[Product]) -> str:
        """One step that leads to a results page; returns the observation."""
        self._clickables()
        shown = [{**_fields(product), "image": f"https://example.com/{product.asin}.jpg"} for product in products]
        return self._show("results.html", keywords=keywords, number=number, num_hits=num_hits, products=shown)

    def open_item(self, keywords: Sequence[str], number: int, product: Product, options: Mapping[str, str]) -> str:
        """One step that leads to an item page; returns the observation."""
        self._clickables()
        fields = {**_fields(product), "image": f"https://example.com/{product.asin}.jpg"}
        return self._show("item.html", keywords=keywords, number=number, product=fields, options=options)

    def _clickables(self) -> dict[str, bs4.Tag]:
        soup = bs4.BeautifulSoup(self._html, "html.parser")
        buttons = soup.find_all(class_="btn")
        products = soup.find_all(class_="product-link")
        options = soup.select('input[type="radio"]')
        found = {element.get_text().lower(): element for element in [*buttons, *products]}
        return found | {str(option.get("value")): option for option in options}

    def _show(self, template: str, **values: Any) -> str:
        source = (_FOLDER / template).read_text(encoding="utf-8")
        # The original hands the source to Flask, which compiles it every time.
        compiled = _ENVIRONMENT.from_string(source)
        self._html = compiled.render(
            session=self._session_id, instruction=self._instruction, link_to=_link_to, dict=dict, **values
        )
        soup = bs4.BeautifulSoup(self._html, "html.parser")
        texts = soup.find_all(string=True)
        seen = (text for text in texts if text.parent and text.parent.name not in _HIDDEN and not _is_comment(text))
        return " [SEP] ".join(str(text).strip() for text in seen if text != "\n")


def _fields(product: Product) -> dict[str, Any]:
    return {
        "asin": product.asin,
        "title": product.title,
        "price_text": product.price_text,
        "category": product.category,
        "query": product.query,
        "product_category": product.product_category,
        "options": [{"name": group.name, "values": group.values} for group in product.options],
    }


def _is_comment(text: object) -> bool:
    return isinstance(text, bs4.Comment | bs4.Doctype)


def _link_to(endpoint: str, **values: Any) -> str:
    """An address with the state in it, as Flask's `url_for` makes them."""
    parts = [json.dumps(value) if isinstance(value, dict) else str(value) for value in values.values()]
    return "/" + "/".join(urllib.parse.quote(part, safe="") for part in [endpoint, *parts])
