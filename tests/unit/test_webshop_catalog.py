"""WebShop's files become products as the specification says, and a bad record gets a sentence."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from async_agent_rl.errors import InputError
from envs.webshop.catalog import Catalog, OptionGroup, load_catalog, parse_price
from tests.webshop_samples import load_golden_catalog, raw_product, write_files


def load(folder: Path, products: Any, attributes: Any, human: Any = None, **options: bool) -> Catalog:
    paths = write_files(folder, products, attributes, human)
    human_path = Path(paths["human_goals"]) if human is not None else None
    return load_catalog(Path(paths["products"]), Path(paths["attributes"]), human_path, **options)


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("", (100.0,)),
        ("$877.80", (877.8,)),
        ("$34.00", (34.0,)),
        ("$1,234.50", (1234.5,)),
        ("$19.99$27.99", (19.99, 27.99)),
        ("$19.99 - $27.99", (19.99, 27.99)),
        ("$3.00$9.99$12.00", (3.0, 9.99)),
        ("$5.00 ($0.42 / Ounce)", (5.0, 0.42)),
        ("$0.00", (0.0,)),
        ("from $7.00", (7.0,)),
    ],
)
def test_prices_are_read_as_webshop_reads_them(text: str, figures: tuple[float, ...]) -> None:
    assert parse_price(text, "here") == figures


@pytest.mark.parametrize("text", ["12.99", "Free", "None"])
def test_a_price_without_a_dollar_sign_is_named(text: str) -> None:
    with pytest.raises(InputError, match=rf'product 7: pricing .{text}. has no "\$"; write it as "\$12.99"'):
        parse_price(text, "product 7")


@pytest.mark.parametrize("text", ["$", "$1.2.3", "$free"])
def test_a_dollar_sign_without_a_number_is_named(text: str) -> None:
    with pytest.raises(InputError, match=r'has no number after a "\$"'):
        parse_price(text, "product 7")


def test_a_price_is_printed_as_the_shortest_float(tmp_path: Path) -> None:
    products = [
        raw_product("A1", pricing="$34.00"),
        raw_product("A2", pricing="$19.90$27.99"),
        raw_product("A3", pricing=None),
    ]
    catalog = load(tmp_path, products, {})
    assert [product.price_text for product in catalog.products] == ["$34.0", "$19.9 to $27.99", "$100.0"]


def test_a_price_in_a_range_does_not_depend_on_the_order_of_the_file(tmp_path: Path) -> None:
    products = [raw_product(f"A{number}", pricing="$10.00$20.00") for number in range(20)]
    there = load(tmp_path, products, {}).by_asin
    back = load(tmp_path, products[::-1], {}).by_asin
    prices = [there[asin].price for asin in there]
    assert prices == [back[asin].price for asin in there]
    assert all(10 <= price < 20 for price in prices)
    assert len(set(prices)) == 20


def test_the_same_asin_has_the_same_price_for_ever(tmp_path: Path) -> None:
    # Pinned, so that a change of the hash, which would change every goal, does not go unnoticed.
    catalog = load(tmp_path, [raw_product("B08ZRR3DZT", pricing="$19.99$27.99")], {})
    assert catalog.products[0].price == pytest.approx(21.980738635589216, abs=1e-12)


def test_option_names_and_values_are_normalised(tmp_path: Path) -> None:
    options = {
        "Color": [{"value": " Black /clear Glass "}, {"value": "RED"}, {"value": "red"}],
        "Style": None,
        "Size ": [],
        "COLOR": [{"value": "a/b", "image": "i"}],
    }
    product = load(tmp_path, [raw_product(customization_options=options)], {}).products[0]
    assert product.options == (OptionGroup("color", ("a | b",)), OptionGroup("size ", ()))


def test_blanks_around_a_slash_stay(tmp_path: Path) -> None:
    options = {"Color": [{"value": "Black /clear Glass"}]}
    product = load(tmp_path, [raw_product(customization_options=options)], {}).products[0]
    assert product.options[0].values == ("black  | clear glass",)


def test_products_are_skipped_by_name_length_and_repetition(tmp_path: Path) -> None:
    broken = {"asin": "12345678901"}
    products = [raw_product("A1"), raw_product("nan"), broken, raw_product("A1", name="Second")]
    catalog = load(tmp_path, products, {})
    assert [(product.asin, product.title) for product in catalog.products] == [("A1", "Oak Table")]


@pytest.mark.parametrize(
    ("raw", "bullets"), [([], ()), ("", ("",)), ("one", ("one",)), (None, ("",)), (["a ", ""], ("a ", ""))]
)
def test_bullets_are_a_list_whatever_the_file_holds(tmp_path: Path, raw: Any, bullets: tuple[str, ...]) -> None:
    assert load(tmp_path, [raw_product(small_description=raw)], {}).products[0].bullets == bullets


def test_golden_products_are_read_whole(tmp_path: Path) -> None:
    shoes, table, tea = load_golden_catalog(tmp_path).products
    assert shoes.query == "men's running shoes"
    assert shoes.options == (OptionGroup("color", ("navy | white", "red")), OptionGroup("size", ("9", "9.5 wide")))
    assert (shoes.instruction, shoes.instruction_attributes) == (
        "Find me rubber sole men's running shoes",
        ("rubber sole",),
    )
    assert shoes.human_instructions[0].options == ("navy | white", "9")
    assert (table.bullets, table.price, table.attributes, table.instruction) == (("",), 100.0, (), None)
    assert tea.bullets == ("", "Caffeine free")


def test_a_product_nobody_mined_has_the_placeholder_attribute(tmp_path: Path) -> None:
    catalog = load(tmp_path, [raw_product("A1"), raw_product("A2")], {"A2": {}})
    assert [product.attributes for product in catalog.products] == [("DUMMY_ATTR",), ("DUMMY_ATTR",)]


def test_compressed_files_are_read_like_plain_ones(tmp_path: Path) -> None:
    products, attributes = tmp_path / "items.json.gz", tmp_path / "attributes.json"
    products.write_bytes(gzip.compress(json.dumps([raw_product()]).encode()))
    attributes.write_text("{}")
    assert load_catalog(products, attributes).products[0].title == "Oak Table"


@pytest.mark.parametrize(
    "missing", ["category", "query", "product_category", "name", "full_description", "small_description"]
)
def test_a_missing_key_is_named_with_its_record(tmp_path: Path, missing: str) -> None:
    record = raw_product("B2")
    del record[missing]
    with pytest.raises(InputError, match=rf'product 1 \(B2\) of .*items.json has no "{missing}"'):
        load(tmp_path, [raw_product("A1"), record], {})


@pytest.mark.parametrize(
    ("products", "attributes", "message"),
    [
        ([{"name": "x"}], {}, 'product 0 of .*items.json has no "asin"'),
        ([3], {}, "product 0 of .*items.json must be a JSON object, but is a number"),
        ({}, {}, "must hold a JSON list of products, but holds an object"),
        ([], {}, "holds no usable product"),
        ([raw_product()], [], "attributes.json must hold a JSON object keyed by asin, but holds a list"),
        ([raw_product(name=None)], {}, r'"name" of product 0 \(A1\) .* must be a text, but is null'),
        ([raw_product(pricing=12.99)], {}, '"pricing" of product 0 .* must be a text such as'),
        ([raw_product(pricing="12.99")], {}, r'product 0 \(A1\) of .*items.json: pricing .12.99. has no "\$"'),
        ([raw_product(customization_options={"Size": [{}]})], {}, 'option "Size" of product 0 .* has no "value"'),
        ([raw_product(customization_options={"Size": "S"})], {}, 'option "Size" of .* must be a list, but is a text'),
        ([raw_product()], {"A1": {"attributes": "x"}}, '"attributes" of entry A1 of .*attributes.json must be a list'),
        (
            [raw_product()],
            {"A1": {"attributes": [], "instruction": "x"}},
            'entry A1 .* has no "instruction_attributes"',
        ),
    ],
)
def test_a_bad_record_gets_a_sentence(tmp_path: Path, products: Any, attributes: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(tmp_path, products, attributes)


def test_synthetic_goals_demand_an_attributes_entry_for_each_product(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"attributes.json has no entry for product 1 \(A2\)"):
        load(tmp_path, [raw_product("A1"), raw_product("A2")], {"A1": {"attributes": []}}, require_attributes=True)


def test_a_bad_human_record_is_named(tmp_path: Path) -> None:
    good = {"instruction": "x", "instruction_attributes": [], "instruction_options": []}
    with pytest.raises(InputError, match=r'record 1 of entry A1 of .*human.json has no "instruction"'):
        load(tmp_path, [raw_product()], {}, {"A1": [good, {}]})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("items.json", None, "items.json does not exist"),
        ("items.json", b'[\n{"asin": "A1",}\n]', "items.json is not valid JSON: line 2, column 15"),
        ("items.json", b'["\xff"]', "items.json is not UTF-8 text: byte 2"),
        ("items.json.gz", b"plain", "items.json.gz cannot be read: Not a gzipped file"),
        ("items.json.gz", gzip.compress(b"[]")[:-4], "items.json.gz is a damaged gzip file"),
    ],
)
def test_an_unreadable_file_is_named(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_catalog(path, path)
