"""Make the embedded WebShop catalogue: `python -m tools.make_catalog --seed 0`.

Writes `products.json.gz` and `attributes.json.gz` in WebShop's own formats, byte for byte the same for the same
arguments. Products are invented, but built the way the original's are: a type, two-word attributes, options, a price,
and look-alikes that differ from another product only in its options, its price or one attribute. Knows nothing of
goals, search or reward: the environment derives those from the files. Sizes beyond the vocabulary are made by
`tools/large_catalog.py`.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from async_agent_rl.errors import EXIT_BAD_INPUT, EXIT_OK, InputError
from async_agent_rl.seeds import Purpose, generator
from tools.catalog_words import BRANDS, CATEGORIES, COLORS, SYLLABLES, CategoryWords
from tools.large_catalog import MIN_PRODUCTS, write_large_catalog

DEFAULT_DIR = pathlib.Path(__file__).resolve().parent.parent / "envs" / "webshop" / "data" / "catalog"
NUM_TYPES = sum(len(category.types) for category in CATEGORIES)
MAX_PRODUCTS = 3000
"""Half of the 6,320 possible ASINs: beyond that, drawing unused ones gets slow and attributes repeat a lot."""

Twin = Literal["options", "price", "attribute"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difficulty:
    """How often a good query and the first result are not enough. All are probabilities per product."""

    twin: float = 0.23
    """The product is a look-alike of an earlier one of its type that has none yet."""
    twin_kinds: tuple[tuple[Twin, float], ...] = (("options", 0.45), ("price", 0.4), ("attribute", 0.15))
    no_instruction: float = 0.2
    """Attributes only: such a product can be found and bought but is nobody's goal."""
    option_groups: tuple[tuple[tuple[str, ...], float], ...] = (
        (("color", "size"), 0.52),
        (("color",), 0.26),
        (("size",), 0.14),
        ((), 0.08),
    )
    price_range: float = 0.04
    """The price is given as a range, as WebShop has it when it depends on the option."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Product:
    """One invented product, before it is written in WebShop's format."""

    asin: str
    brand: str
    category: CategoryWords
    type_name: str
    attributes: tuple[str, ...]
    """All of them; the first two stand in the title and in the instruction."""
    colors: tuple[str, ...]
    sizes: tuple[str, ...]
    cents: int
    cents_high: int | None
    """Upper end of a price range."""
    has_instruction: bool

    def title(self) -> str:
        """In lower case, so that a word is the same for a small tokenizer in the title and in the instruction."""
        return " ".join((self.brand, *self.attributes[:2], self.type_name))

    def instruction(self) -> str:
        return f"Find me {', '.join(self.attributes[:2])} {self.type_name}"


class CatalogMaker:
    """Draws products one after the other from one seeded generator."""

    def __init__(self, seed: int, difficulty: Difficulty) -> None:
        self._rng = generator(seed, Purpose.CATALOG)
        self._difficulty = difficulty
        self._asins: set[str] = set()

    def make(self, num_products: int) -> list[Product]:
        """[num_products] products, as many of one type as of the other (+-1), in shuffled order."""
        types = [(category, *typed) for category in CATEGORIES for typed in category.types]
        by_type: list[list[Product]] = [[] for _ in types]
        twinned: set[str] = set()
        for number in range(num_products):
            position = number % len(types)
            category, type_name, size_pool = types[position]
            earlier = [p for p in by_type[position] if p.asin not in twinned and p.has_instruction]
            if earlier and self._rng.random() < self._difficulty.twin:
                model = earlier[int(self._rng.integers(len(earlier)))]
                product = self._make_twin(model, size_pool)
                twinned |= {model.asin, product.asin}
            else:
                product = self._make_new(category, type_name, size_pool, by_type[position])
            by_type[position].append(product)
        products = [product for group in by_type for product in group]
        return [products[int(index)] for index in self._rng.permutation(num_products)]

    def _make_new(
        self, category: CategoryWords, type_name: str, size_pool: Sequence[str], siblings: Sequence[Product]
    ) -> Product:
        # Two products that both have what one of them promises would be look-alikes nobody decided on. A large
        # catalogue runs out of pairs, so give up in the end.
        for _ in range(50):
            attributes = self._choose(category.attributes, 3 + int(self._rng.random() < 0.4))
            if not any(
                set(attributes[:2]) <= set(other.attributes) or set(other.attributes[:2]) <= set(attributes)
                for other in siblings
            ):
                break
        groups = self._pick(self._difficulty.option_groups)
        alone = len(groups) == 1
        colors = self._choose(COLORS, int(self._rng.integers(6, 9) if alone else self._rng.integers(3, 5)))
        sizes = self._choose(size_pool, int(self._rng.integers(4, 7) if alone else self._rng.integers(3, 5)))
        cents = self._draw_price(*category.price_range)
        spread = int(self._rng.integers(2, 9)) * 100 if self._rng.random() < self._difficulty.price_range else None
        return Product(
            asin=self._draw_asin(),
            brand=self._choose(BRANDS, 1)[0],
            category=category,
            type_name=type_name,
            attributes=attributes,
            colors=colors if "color" in groups else (),
            sizes=tuple(size for size in size_pool if size in sizes) if "size" in groups else (),
            cents=cents,
            cents_high=None if spread is None else cents + spread,
            has_instruction=bool(self._rng.random() >= self._difficulty.no_instruction),
        )

    def _make_twin(self, model: Product, size_pool: Sequence[str]) -> Product:
        kind: Twin = self._pick(self._difficulty.twin_kinds)
        if kind == "options" and not model.colors and len(model.sizes) >= len(size_pool):
            kind = "price"  # there is no other option set to give it
        twin = dataclasses.replace(
            model,
            asin=self._draw_asin(),
            brand=self._choose([brand for brand in BRANDS if brand != model.brand], 1)[0],
            has_instruction=bool(self._rng.random() >= self._difficulty.no_instruction),
        )
        if kind == "price":
            # More than the 40 dollars by which a price ceiling may exceed the price.
            dearer = (45 + int(self._rng.integers(20))) * 100
            high = None if model.cents_high is None else model.cents_high + dearer
            return dataclasses.replace(twin, cents=model.cents + dearer, cents_high=high)
        if kind == "attribute":
            others = [word for word in model.category.attributes if word not in model.attributes]
            return dataclasses.replace(twin, attributes=(model.attributes[0], *self._choose(others, 2)))
        if model.colors:
            others = [color for color in COLORS if color not in model.colors]
            return dataclasses.replace(twin, colors=self._choose(others, len(model.colors)))
        sizes = [size for size in size_pool if size not in model.sizes] or list(size_pool)
        return dataclasses.replace(twin, sizes=tuple(sizes))

    def _draw_asin(self) -> str:
        while True:
            asin = "".join(self._choose(SYLLABLES, 2))
            if asin not in self._asins:
                self._asins.add(asin)
                return asin

    def _draw_price(self, low: int, high: int) -> int:
        cents = (99, 99, 49, 95)[int(self._rng.integers(4))]
        return int(self._rng.integers(low, high + 1)) * 100 + cents

    def _choose(self, pool: Sequence[str], count: int) -> tuple[str, ...]:
        picked = self._rng.permutation(len(pool))[: min(count, len(pool))]
        return tuple(pool[int(index)] for index in picked)

    def _pick(self, weighted: Sequence[tuple[Any, float]]) -> Any:
        edges = np.cumsum([weight for _, weight in weighted])
        return weighted[min(int(np.searchsorted(edges, self._rng.random() * edges[-1])), len(weighted) - 1)][0]


def raw_product(product: Product) -> dict[str, Any]:
    """The product as WebShop's items file holds it (the keys the original reads, and those it drops)."""
    words = product.attributes
    options: dict[str, Any] = {}
    if product.colors:
        options["Color"] = [{"value": color.title(), "is_selected": False} for color in product.colors]
    if product.sizes:
        options["Size"] = [{"value": size.title(), "is_selected": False} for size in product.sizes]
    pricing = f"${product.cents / 100:.2f}"
    if product.cents_high is not None:
        pricing += f"${product.cents_high / 100:.2f}"
    levels = (product.category.department, product.category.name.title(), product.type_name.title())
    return {
        "name": product.title(),
        "product_information": "",
        "brand": f"Brand: {product.brand.title()}",
        "full_description": f"{product.brand.title()} made these {product.type_name} for you: {', '.join(words)}.",
        "pricing": pricing,
        "list_price": "",
        "availability_status": "In Stock",
        "images": [f"https://example.com/{product.asin}.jpg"],
        "product_category": " › ".join(levels),
        "average_rating": "",
        "small_description": [f"{word.capitalize()} " for word in (*words[2:], *words[:2])],
        "customization_options": options or "",
        "asin": product.asin,
        "category": product.category.name,
        "query": product.type_name,
        "page": 1,
    }


def attribute_record(product: Product) -> dict[str, Any]:
    """The product's entry in WebShop's attributes file."""
    record: dict[str, Any] = {"attributes": list(product.attributes)}
    if product.has_instruction:
        record["instruction"] = product.instruction()
        record["instruction_attributes"] = list(product.attributes[:2])
    return record


def make_products(seed: int, num_products: int, difficulty: Difficulty | None = None) -> list[Product]:
    """[num_products] products. Raises InputError when the vocabulary cannot give that many."""
    if not NUM_TYPES <= num_products <= MAX_PRODUCTS:
        raise InputError(
            f"--products must lie between {NUM_TYPES} (one of each type) and {MAX_PRODUCTS}, or be at least "
            f"{MIN_PRODUCTS} (random words), got {num_products}."
        )
    return CatalogMaker(seed, difficulty or Difficulty()).make(num_products)


def write_catalog(products: Sequence[Product], folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Write both files into `folder` (made if missing); returns (products file, attributes file)."""
    folder.mkdir(parents=True, exist_ok=True)
    items = folder / "products.json.gz"
    attributes = folder / "attributes.json.gz"
    _write_json_gz(items, [raw_product(product) for product in products])
    _write_json_gz(attributes, {product.asin: attribute_record(product) for product in products})
    return items, attributes


def _write_json_gz(path: pathlib.Path, value: object) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=0)
    # mtime 0 and no file name in the header: the same bytes on every day and in every folder.
    with path.open("wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=9, mtime=0) as packed:
        packed.write(text.encode())


def count_goals(products: Sequence[Product]) -> int:
    """Synthetic goals WebShop makes of them: one per combination of options of a product with an instruction."""
    return sum(max(1, len(p.colors)) * max(1, len(p.sizes)) for p in products if p.has_instruction)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.make_catalog", description="Make the embedded catalogue.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--products", type=int, default=1020, help="how many, default %(default)s")
    parser.add_argument("--out", type=pathlib.Path, default=DEFAULT_DIR, help="folder, default %(default)s")
    args = parser.parse_args(argv)
    if args.products >= MIN_PRODUCTS:
        return _write_large(args.seed, args.products, args.out)
    try:
        products = make_products(args.seed, args.products)
        paths = write_catalog(products, args.out)
    except InputError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_INPUT
    for path in paths:
        print(f"{path}  {path.stat().st_size:,} bytes")
    print(f"{len(products):,} products of {NUM_TYPES} types, {count_goals(products):,} synthetic goals")
    return EXIT_OK


def _write_large(seed: int, num_products: int, folder: pathlib.Path) -> int:
    if folder == DEFAULT_DIR:
        print(f"--products {num_products} is not for the embedded catalogue; name a folder with --out", file=sys.stderr)
        return EXIT_BAD_INPUT
    for path in write_large_catalog(seed, num_products, folder):
        print(f"{path}  {path.stat().st_size:,} bytes")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
