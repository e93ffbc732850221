"""Reads WebShop's own files into products: items, mined attributes, human instructions.

Does not know goals, pages or search. Where the original program would crash on a record, this one raises InputError
naming the file, the record and the cure; what the original accepts is accepted with the same result.
"""

from __future__ import annotations

import dataclasses
import decimal
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from async_agent_rl.errors import InputError
from envs.webshop.datafile import Role, hash_catalog, open_data
from envs.webshop.datafile import kind as _kind
from envs.webshop.draws import unit_draw

NO_PRICE = 100.0
"""Dollars asked for a product that states no price."""
PLACEHOLDER_ATTRIBUTE = "DUMMY_ATTR"
"""The only attribute of a product that the attributes file does not describe."""
LONGEST_ASIN = 10

_REQUIRED = (
    "category",
    "query",
    "product_category",
    "name",
    "full_description",
    "small_description",
    "customization_options",
    "images",
)


@dataclasses.dataclass(frozen=True, slots=True)
class OptionGroup:
    """One choice a product offers: `size` with its values, in page order."""

    name: str
    values: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class HumanInstruction:
    """What one person asked for when shown a product."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    """Bare option values; may be empty."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Product:
    """One product as the pages, the search and the reward see it. Compared by identity."""

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    price_text: str
    """As the page prints it: `$7.0` or `$19.99 to $27.99`."""
    price: float
    """Dollars the reward compares with the ceiling; drawn once inside a price range."""
    options: tuple[OptionGroup, ...]
    attributes: tuple[str, ...]
    category: str
    query: str
    """Stripped and lower-cased."""
    product_category: str
    """Levels joined with the sign U+203A."""
    instruction: str | None = None
    """Synthetic instruction without options and price, where the attributes file has one."""
    instruction_attributes: tuple[str, ...] = ()
    human_instructions: tuple[HumanInstruction, ...] = ()


@dataclasses.dataclass(slots=True)
class Reading:
    """What was met while reading the files, of which the original says nothing; filled in record by record."""

    digests: dict[Role, bytes] = dataclasses.field(default_factory=dict)
    """See `hash_catalog`."""
    num_unusable: int = 0
    """Products whose asin is `nan` or longer than LONGEST_ASIN; left out."""
    num_repeated: int = 0
    """Products whose asin came before; the first one counts."""
    num_undescribed: int = 0
    """Products without an entry in the attributes file; they have PLACEHOLDER_ATTRIBUTE."""
    examples: dict[str, str] = dataclasses.field(default_factory=dict)
    """First asin of each of the three kinds, by the name of its counter."""

    def count(self, counter: str, asin: str) -> None:
        """One more of a kind."""
        setattr(self, counter, getattr(self, counter) + 1)
        self.examples.setdefault(counter, asin)


@dataclasses.dataclass(frozen=True, slots=True)
class Catalog:
    """All products, in file order."""

    products: Sequence[Product]
    """Of a large catalogue each is read when asked for, and is not the same object every time."""
    by_asin: Mapping[str, Product]
    hash: str = ""
    """Names the contents of the files (see `hash_catalog`); empty for a catalogue made by hand."""
    reading: Reading = dataclasses.field(default_factory=Reading)


def load_catalog(
    products: Path, attributes: Path, human_goals: Path | None = None, *, require_attributes: bool = False
) -> Catalog:
    """Read a catalogue. Every file may be plain JSON or, with the suffix .gz, compressed.

    Args:
        products: a list of product objects (WebShop's items_shuffle*.json).
        attributes: an object from asin to mined attributes (items_ins_v2*.json).
        human_goals: an object from asin to a list of human records (items_human_ins.json), where wanted.
        require_attributes: refuse a product that the attributes file does not hold (synthetic goals need the entry;
            with human goals such a product has the attribute PLACEHOLDER_ATTRIBUTE).

    Raises:
        InputError: a file is missing or broken, or a record lacks what it needs.
    """
    file = open_data(products, "products")
    if not isinstance(file.content, list):
        raise InputError(f"{products} must hold a JSON list of products, but holds {_kind(file.content)}")
    reading = Reading(digests={"products": file.digest})
    usable = usable_products(
        file.content, products, attributes, human_goals, require_attributes=require_attributes, reading=reading
    )
    by_asin = {product.asin: product for product in usable}
    return Catalog(tuple(by_asin.values()), by_asin, hash_catalog(reading.digests), reading)


def usable_products(
    raw_products: Iterable[Any],
    products: Path,
    attributes: Path,
    human_goals: Path | None = None,
    *,
    require_attributes: bool = False,
    reading: Reading | None = None,
) -> Iterator[Product]:
    """The products of raw records, one after the other; the first of each asin. Arguments as in `load_catalog`.

    Reads the attributes and the human goals whole, and keeps nothing of the records but their asins.

    Args:
        reading: is told the digests of the other two files, and what is left out.

    Raises:
        InputError: as `load_catalog`.
    """
    reading = Reading() if reading is None else reading
    mined = _read_object(attributes, "attributes", reading)
    human = _read_object(human_goals, "human_goals", reading) if human_goals is not None else {}
    seen: set[str] = set()
    for number, raw in enumerate(raw_products):
        record = _Record(raw, f"product {number} of {products}")
        asin = record.text("asin")
        record = _Record(raw, f"product {number} ({asin}) of {products}")
        if asin == "nan" or len(asin) > LONGEST_ASIN:
            reading.count("num_unusable", asin)
            continue
        if asin in seen:
            reading.count("num_repeated", asin)
            continue
        if asin not in mined:
            if require_attributes:
                raise InputError(f"{attributes} has no entry for {record.where}; give the attributes file made for it")
            reading.count("num_undescribed", asin)
        seen.add(asin)
        yield _product(record, asin, _mined(mined, asin, attributes), _humans(human, asin, human_goals))
    if not seen:
        raise InputError(f"{products} holds no usable product; check that it is WebShop's items file")
    _check_belonging(mined, attributes, seen, products)
    _check_belonging(human, human_goals, seen, products)


def parse_price(text: str, where: str) -> tuple[float, ...]:
    """The one or two dollar figures of a price text, in the order written; (100.0,) for an empty text.

    Everything before the first `$` is ignored, and so is anything but digits and points after it.

    Raises:
        InputError: no `$`, or no number behind one.
    """
    if not text:
        return (NO_PRICE,)
    parts = text.split("$")[1:]
    if not parts:
        raise InputError(f'{where}: pricing {text!r} has no "$"; write it as "$12.99", or leave it empty')
    figures = []
    for part in parts:
        digits = "".join(sign for sign in part if sign.isdecimal() or sign == ".")
        try:
            figures.append(float(decimal.Decimal(digits)))
        except decimal.InvalidOperation:
            raise InputError(f'{where}: pricing {text!r} has no number after a "$"; write it as "$12.99"') from None
    return tuple(figures[:2])


@dataclasses.dataclass(frozen=True, slots=True)
class _Record:
    """A raw JSON object together with where it stands, for error messages."""

    raw: Any
    where: str

    def get(self, key: str) -> Any:
        if not isinstance(self.raw, dict):
            raise InputError(f"{self.where} must be a JSON object, but is {_kind(self.raw)}")
        if key not in self.raw:
            raise InputError(f'{self.where} has no "{key}"; add the key or remove the record')
        return self.raw[key]

    def text(self, key: str) -> str:
        return _text(self.get(key), f'"{key}" of {self.where}')

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.get(key)
        if not isinstance(value, list):
            raise InputError(f'"{key}" of {self.where} must be a list of texts, but is {_kind(value)}')
        return tuple(_text(item, f'an entry of "{key}" of {self.where}') for item in value)


@dataclasses.dataclass(frozen=True, slots=True)
class _Mined:
    """One product's entry in the attributes file."""

    attributes: tuple[str, ...] = (PLACEHOLDER_ATTRIBUTE,)
    instruction: str | None = None
    instruction_attributes: tuple[str, ...] = ()


def _product(record: _Record, asin: str, mined: _Mined, humans: tuple[HumanInstruction, ...]) -> Product:
    for key in _REQUIRED:
        record.get(key)
    pricing = record.raw.get("pricing")
    if pricing is not None and not isinstance(pricing, str):
        raise InputError(f'"pricing" of {record.where} must be a text such as "$12.99", but is {_kind(pricing)}')
    figures = parse_price(pricing or "", record.where)
    low, high = figures[0], figures[-1]
    return Product(
        asin=asin,
        title=record.text("name"),
        description=record.text("full_description"),
        bullets=_bullets(record),
        price_text=" to ".join(f"${figure}" for figure in figures),
        price=low + (high - low) * unit_draw("price", asin) if len(figures) == 2 else low,
        options=_option_groups(record),
        attributes=mined.attributes,
        category=record.text("category"),
        query=record.text("query").lower().strip(),
        product_category=record.text("product_category"),
        instruction=mined.instruction,
        instruction_attributes=mined.instruction_attributes,
        human_instructions=humans,
    )


def _bullets(record: _Record) -> tuple[str, ...]:
    value = record.get("small_description")
    if isinstance(value, list):
        return record.texts("small_description")
    # The original prints the word None for a missing text; an empty bullet says the same without inventing a word.
    return ("",) if value is None else (record.text("small_description"),)


def _option_groups(record: _Record) -> tuple[OptionGroup, ...]:
    raw = record.get("customization_options")
    if not raw:
        return ()
    if not isinstance(raw, dict):
        raise InputError(f'"customization_options" of {record.where} must be an object, but is {_kind(raw)}')
    groups: dict[str, tuple[str, ...]] = {}
    for name, entries in raw.items():
        if entries is None:
            continue
        where = f'option "{name}" of {record.where}'
        if not isinstance(entries, list):
            raise InputError(f"{where} must be a list, but is {_kind(entries)}")
        values = (_Record(entry, where).text("value") for entry in entries)
        groups[name.lower()] = tuple(value.strip().replace("/", " | ").lower() for value in values)
    return tuple(OptionGroup(name, values) for name, values in groups.items())


def _mined(table: Mapping[str, Any], asin: str, path: Path) -> _Mined:
    if asin not in table:
        return _Mined()
    entry = _Record(table[asin], f"entry {asin} of {path}")
    if not isinstance(entry.raw, dict):
        raise InputError(f"{entry.where} must be a JSON object, but is {_kind(entry.raw)}")
    attributes = entry.texts("attributes") if "attributes" in entry.raw else (PLACEHOLDER_ATTRIBUTE,)
    if entry.raw.get("instruction") is None:
        return _Mined(attributes)
    instruction_attributes = entry.texts("instruction_attributes")
    if not instruction_attributes:
        raise InputError(f'{entry.where} has an instruction but no "instruction_attributes"; a goal needs at least one')
    return _Mined(attributes, entry.text("instruction"), instruction_attributes)


def _humans(table: Mapping[str, Any], asin: str, path: Path | None) -> tuple[HumanInstruction, ...]:
    records = table.get(asin, [])
    if not isinstance(records, list):
        raise InputError(f"entry {asin} of {path} must be a list of records, but is {_kind(records)}")
    entries = (_Record(raw, f"record {number} of entry {asin} of {path}") for number, raw in enumerate(records))
    return tuple(
        HumanInstruction(
            text=entry.text("instruction"),
            attributes=entry.texts("instruction_attributes"),
            options=entry.texts("instruction_options"),
        )
        for entry in entries
    )


def _read_object(path: Path, role: Role, reading: Reading) -> dict[str, Any]:
    file = open_data(path, role)
    reading.digests[role] = file.digest
    if not isinstance(file.content, dict):
        raise InputError(f"{path} must hold a JSON object keyed by asin, but holds {_kind(file.content)}")
    return file.content


def _check_belonging(table: Mapping[str, Any], path: Path | None, asins: Collection[str], products: Path) -> None:
    """Refuse a file of entries none of which is for a product of the catalogue."""
    if table and not any(asin in table for asin in asins):
        raise InputError(
            f"{path} has entries for {len(table)} products (the first is {next(iter(table))}), but for none of the "
            f"{len(asins)} in {products}; give files that belong together"
        )


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where} must be a text, but is {_kind(value)}")
    return value
