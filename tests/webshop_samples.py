"""What WebShop's tests share: the golden files, the real data where it is, and stand-ins for search and spaCy."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envs.webshop.catalog import Catalog, OptionGroup, Product, load_catalog
from envs.webshop.goals import Goal, build_goals
from envs.webshop.session import Session, Shop

ROOT = Path(__file__).parents[1]
GOLDEN: dict[str, Any] = json.loads((ROOT / "tests/golden/webshop_golden.json").read_text())
CASES: dict[str, Any] = json.loads((ROOT / "tests/golden/webshop_cases.json").read_text())

_REAL = Path(os.environ.get("WEBSHOP_REAL_DATA", ROOT.parent / "shared/data/webshop_real"))
needs_real_data = pytest.mark.skipif(
    not (_REAL / "items_shuffle.json").exists(), reason="the real WebShop records are not on this machine"
)
REAL_OPTIONS = {
    "products": str(_REAL / "items_shuffle.json"),
    "attributes": str(_REAL / "items_ins_v2.json"),
    "human_goals": str(_REAL / "items_human_ins_sample.json"),
}


class WordTagger:
    """Takes every word for a noun, except in the texts it was told about."""

    def __init__(self, known: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self._known = known or {}

    def nouns(self, text: str) -> tuple[str, ...]:
        return self._known.get(text, tuple(text.lower().split()))


class FixedSearch:
    """Finds the same products whatever one asks, and nothing for `nothing`."""

    def __init__(self, *products: Product) -> None:
        self._products = products

    def find(self, query: str) -> tuple[Product, ...]:
        return () if query == "nothing" else self._products


def make_product(asin: str = "A1", **changes: Any) -> Product:
    """A product with unremarkable fields; `options` may be given as a mapping from group to values."""
    fields: dict[str, Any] = {
        "title": "Oak Table",
        "description": "",
        "bullets": (),
        "price_text": "$35.0",
        "price": 35.0,
        "options": {},
        "attributes": (),
        "category": "garden",
        "query": "tables",
        "product_category": "home › tables",
    }
    fields |= changes
    groups = tuple(OptionGroup(name, tuple(values)) for name, values in dict(fields["options"]).items())
    return Product(asin=asin, **{**fields, "options": groups})


def make_goal(product: Product, **changes: Any) -> Goal:
    """A goal for the product that asks for nothing but one attribute."""
    fields: dict[str, Any] = {
        "instruction": "find me a table",
        "attributes": ("solid wood",),
        "options": (),
        "price_ceiling": 40.0,
        "weight": 1.0,
    }
    return Goal(product=product, **{**fields, **changes})


def raw_product(asin: str = "A1", **changes: Any) -> dict[str, Any]:
    """A raw record of an items file."""
    record: dict[str, Any] = {
        "asin": asin,
        "name": "Oak Table",
        "full_description": "A table.",
        "small_description": ["solid wood "],
        "pricing": "$35.00",
        "product_category": "Home › Tables",
        "category": "garden",
        "query": " End Tables ",
        "customization_options": "",
        "images": [],
    }
    return {**record, **changes}


def write_files(folder: Path, products: Any, attributes: Any, human: Any = None) -> dict[str, str]:
    """Write WebShop files and return the options that name them."""
    paths = {"products": folder / "items.json", "attributes": folder / "attributes.json"}
    paths["products"].write_text(json.dumps(products))
    paths["attributes"].write_text(json.dumps(attributes))
    if human is not None:
        paths["human_goals"] = folder / "human.json"
        paths["human_goals"].write_text(json.dumps(human))
    return {key: str(path) for key, path in paths.items()}


def load_golden_catalog(folder: Path) -> Catalog:
    """The three invented products of the golden transcripts, with their human record."""
    paths = write_files(folder, GOLDEN["products"], GOLDEN["attributes"], GOLDEN["human"])
    return load_catalog(Path(paths["products"]), Path(paths["attributes"]), Path(paths["human_goals"]))


def golden_session(folder: Path) -> Session:
    """The recorded goal in the recorded shop, before the first action."""
    catalog = load_golden_catalog(folder)
    (goal,) = build_goals(catalog, "human")
    # The recording fixed both figures that the original draws at random.
    goal = dataclasses.replace(goal, instruction=GOLDEN["goal"]["instruction_text"], price_ceiling=70.0)
    shoes, table, tea = catalog.products
    return Session(Shop(FixedSearch(tea, shoes, table), WordTagger()), goal)
