"""A catalogue of the size of WebShop's full one, for measurements: `tools.make_catalog --products 1181436 --out DIR`.

Its words follow Zipf's law over more than 50,000 distinct stems, and each of the 100 commonest stands in at least one
product in twenty. Products are random bags of words, so searching is as hard as it gets and shopping makes little
sense. Records are written as they are made; memory does not grow with their number, but for the human instructions.
"""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np
from rich.progress import track

from async_agent_rl.seeds import Purpose, generator
from tools.catalog_words import CATEGORIES, COLORS, CONSONANTS

NUM_WORDS = 60_000
MIN_PRODUCTS = 5_000
"""Below that, too few of the words would occur."""
FULL_SIZE = 1_181_436
"""Products of WebShop's full catalogue."""
NUM_HUMAN = 12_087
"""Human instructions of WebShop's full data; smaller catalogues get their share."""

_TITLE_WORDS = 14
_DESCRIPTION_WORDS = 56
_BULLETS = (14, 9, 9, 9)
_WORDS_EACH = _TITLE_WORDS + _DESCRIPTION_WORDS + sum(_BULLETS)
_CHUNK = 2_000
_WITH_INSTRUCTION = 0.415  # of WebShop's first 1,000 products
_RANGED_PRICE = 0.2
_NO_PRICE = 0.05
_ASIN_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ASINS = 36**8
_ASIN_STRIDE = 1_000_000_007 * 1009  # without a common factor with 36, so no two numbers give one asin


def write_large_catalog(seed: int, num_products: int, folder: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """Write items, attributes and human instructions in WebShop's formats; returns the three files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = tuple(folder / f"{name}.json" for name in ("products", "attributes", "human"))
    num_human = max(NUM_HUMAN * num_products // FULL_SIZE, 100)
    people: list[tuple[str, dict[str, Any]]] = []
    with paths[0].open("w", encoding="utf-8") as items, paths[1].open("w", encoding="utf-8") as attributes:
        made = make_records(seed, num_products)
        for number, (raw, mined) in enumerate(track(made, "writing products", total=num_products)):
            _write_entry(items, "[", number, json.dumps(raw, ensure_ascii=False))
            _write_entry(attributes, "{", number, f"{json.dumps(raw['asin'])}: {json.dumps(mined)}")
            # Spread evenly over the catalogue.
            if number * num_human // num_products != (number + 1) * num_human // num_products:
                people.append((raw["asin"], human_record(raw, mined)))
        items.write("\n]\n")
        attributes.write("\n}\n")
    paths[2].write_text(json.dumps({asin: [record] for asin, record in people}), encoding="utf-8")
    return paths


def make_records(seed: int, num_products: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """[num_products] raw product and attribute records; the first n are the same whatever the number."""
    words = vocabulary(seed)
    edges = np.cumsum(1 / np.arange(1, len(words) + 1))
    types = [(category, *typed) for category in CATEGORIES for typed in category.types]
    for start in range(0, num_products, _CHUNK):
        rng = generator(seed, Purpose.CATALOG, start)
        draws = np.searchsorted(edges, rng.random((_CHUNK, _WORDS_EACH)) * edges[-1]).tolist()
        for number in range(start, min(start + _CHUNK, num_products)):
            texts = [words[index] for index in draws[number - start]]
            yield _record(number, rng, texts, types[int(rng.integers(len(types)))])


def vocabulary(seed: int) -> list[str]:
    """[NUM_WORDS] different words, commonest first: the shop's own, then invented ones that are their own stems."""
    real = dict.fromkeys(
        word
        for category in CATEGORIES
        for phrase in (*(name for name, _ in category.types), *category.attributes)
        for word in phrase.split()
    )
    # Ending in a, o or u: no rule of the stemmer applies, so as many stems as words.
    parts = ("".join(pair) for pair in itertools.product(CONSONANTS.lower(), "aeiou"))
    ends = ("".join(pair) for pair in itertools.product(CONSONANTS.lower(), "aou"))
    syllables, last = list(parts), list(ends)
    invented = ["".join(three) for three in itertools.product(syllables, syllables, last)]
    rng = generator(seed, Purpose.CATALOG, -1)
    chosen = [invented[int(index)] for index in rng.permutation(len(invented))[:NUM_WORDS]]
    mixed = [*real, *(word for word in chosen if word not in real)][:NUM_WORDS]
    # The shop's words lie among the 2,000 commonest, as in a real shop.
    head = [mixed[int(index)] for index in rng.permutation(2_000)]
    return [*head, *mixed[2_000:]]


def human_record(raw: dict[str, Any], mined: dict[str, Any]) -> dict[str, Any]:
    """What a person might have asked for on seeing the product."""
    options = raw["customization_options"] or {}
    wanted = [entries[0]["value"].lower() for entries in options.values()]
    shown = [f"{name}: {entries[0]['value'].lower()}" for name, entries in options.items()]
    wishes = " and ".join(mined["attributes"][:2])
    return {
        "asin": raw["asin"],
        "instruction": f"i am looking for {raw['query']} that have {wishes} in {' '.join(wanted) or 'any form'}.",
        "attributes": mined["attributes"],
        "options": shown or [""],
        "instruction_attributes": mined["attributes"][:2],
        "instruction_options": wanted,
        "assignment_id": "none",
        "worker_id": "none",
    }


def _record(
    number: int, rng: np.random.Generator, texts: Sequence[str], typed: tuple[Any, str, Sequence[str]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    category, type_name, sizes = typed
    chosen = [category.attributes[int(index)] for index in rng.permutation(len(category.attributes))[:3]]
    end = _TITLE_WORDS + _DESCRIPTION_WORDS
    bullets = []
    for length in _BULLETS:
        bullets.append(f"{' '.join(texts[end : end + length]).capitalize()} ")
        end += length
    asin = _asin(number)
    options: dict[str, Any] = {}
    kind = rng.random()
    if kind < 0.6:
        options["Color"] = [{"value": COLORS[int(index)].title()} for index in rng.permutation(len(COLORS))[:4]]
    if 0.4 < kind < 0.9:
        options["Size"] = [{"value": size.title()} for size in sizes[: 2 + number % 4]]
    cents = int(rng.integers(500, 20_000))
    pricing = f"${cents / 100:.2f}" + (f"${cents / 80:.2f}" if rng.random() < _RANGED_PRICE else "")
    raw = {
        "name": f"{' '.join(texts[: _TITLE_WORDS - 4]).title()} {' '.join(chosen[:2])} {type_name}",
        "product_information": "",
        "brand": f"Brand: {texts[0].title()}",
        "full_description": f"{' '.join(texts[_TITLE_WORDS - 4 : _TITLE_WORDS + _DESCRIPTION_WORDS])}.",
        "pricing": pricing if rng.random() >= _NO_PRICE else "",
        "images": [f"https://example.com/{asin}.jpg"],
        "product_category": f"{category.department} › {category.name.title()} › {type_name.title()}",
        "average_rating": "",
        "small_description": bullets,
        "customization_options": options or "",
        "asin": asin,
        "category": category.name,
        "query": type_name,
        "page": 1,
    }
    mined: dict[str, Any] = {"attributes": chosen}
    if rng.random() < _WITH_INSTRUCTION:
        mined["instruction"] = f"Find me {', '.join(chosen[:2])} {type_name}"
        mined["instruction_attributes"] = chosen[:2]
    return raw, mined


def _asin(number: int) -> str:
    """Ten signs, in no order."""
    rest, digits = number * _ASIN_STRIDE % _ASINS, ""
    for _ in range(8):
        rest, digit = divmod(rest, 36)
        digits = _ASIN_DIGITS[digit] + digits
    return "B0" + digits


def _write_entry(file: IO[str], opening: str, number: int, text: str) -> None:
    file.write(f"{',' if number else opening}\n{text}")
