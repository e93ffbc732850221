"""Files that are not what they should be get one sentence; catalogues are named by their contents."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from async_agent_rl.errors import InputError
from envs.webshop.catalog import load_catalog
from envs.webshop.datafile import open_data
from tests.webshop_samples import raw_product, write_files

PRODUCTS = [raw_product("A1"), raw_product("A2")]
ATTRIBUTES = {"A1": {"attributes": ["solid wood"]}, "A2": {"attributes": []}}
HUMAN = {"A1": [{"instruction": "i want a table", "instruction_attributes": ["solid wood"], "instruction_options": []}]}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 5479720229\n"


def message_of(path: Path, role: Any = "products") -> str:
    with pytest.raises(InputError) as caught:
        open_data(path, role)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(f"{path} ")


@pytest.mark.parametrize("name", ["items.json", "items.json.gz"])
def test_a_git_lfs_pointer_is_named_with_the_size_it_promises(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(POINTER)
    assert message_of(tmp_path / name) == (
        "is a Git-LFS pointer, not the data itself: run `git lfs pull` where it came from, or download the file itself "
        "(5,479,720,229 bytes)"
    )


def test_a_list_cut_anywhere_names_the_last_whole_product(tmp_path: Path) -> None:
    text = json.dumps(PRODUCTS)
    path = tmp_path / "items.json"
    for cut in range(1, len(text)):
        path.write_text(text[:cut])
        whole = text[:cut].count(', "images": []}')
        last = f", the last of them A{whole}" if whole else ""
        assert message_of(path) == (
            f"ends in the middle of record {whole}, after {whole} whole ones{last}: "
            "the download was cut short; fetch the file again"
        )


def test_a_cut_object_names_the_last_whole_entry(tmp_path: Path) -> None:
    path = tmp_path / "attributes.json"
    path.write_text('{"A1": {"attributes": []}, "A2": {"attri')
    assert message_of(path, "attributes").startswith(
        "ends in the middle of record 1, after 1 whole ones, the last of them A1: the download was cut short"
    )


@pytest.mark.parametrize("text", ["[1, nul", "[1, tr", "[1, -", "[1, ", '[1, "a\\', '[1, "\\u00', "[1", "["])
def test_a_cut_inside_a_value_is_a_cut(tmp_path: Path, text: str) -> None:
    path = tmp_path / "items.json"
    path.write_text(text)
    assert "the download was cut short" in message_of(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty: the download was cut short; fetch the file again"),
        (b"<!DOCTYPE html><title>Quota exceeded</title>", "is a web page, not JSON: open it to read why"),
        (gzip.compress(b"[]"), "is compressed; let its name end in .gz"),
        (b'[{"asin": "A1",}, 5]', "is not valid JSON: line 1, column 1"),
        (b"[1, tru, 2]", "is not valid JSON: line 1, column 5"),
    ],
)
def test_other_unreadable_files_are_told_apart(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "items.json"
    path.write_bytes(content)
    assert message_of(path).startswith(message)


def test_a_cut_compressed_file_is_a_cut(tmp_path: Path) -> None:
    path = tmp_path / "items.json.gz"
    path.write_bytes(gzip.compress(json.dumps(PRODUCTS).encode())[:60])
    message = message_of(path)
    assert message.startswith("is a damaged gzip file (")
    assert message.endswith("): the download was cut short; fetch the file again")


@pytest.mark.parametrize(
    ("content", "role", "message"),
    [
        (
            ATTRIBUTES,
            "products",
            "was given as env.webshop.products, but holds WebShop's mined attributes (items_ins_v2*.json); give it as "
            "env.webshop.attributes, and WebShop's items (items_shuffle*.json) here",
        ),
        (
            PRODUCTS,
            "attributes",
            "was given as env.webshop.attributes, but holds WebShop's items (items_shuffle*.json); give it as "
            "env.webshop.products, and WebShop's mined attributes (items_ins_v2*.json) here",
        ),
        (
            HUMAN,
            "attributes",
            "was given as env.webshop.attributes, but holds WebShop's human instructions (items_human_ins.json); give "
            "it as env.webshop.human_goals, and WebShop's mined attributes (items_ins_v2*.json) here",
        ),
        (
            ["i want a table"],
            "human_goals",
            "was given as env.webshop.human_goals, but holds bare texts (such as human_goals.json), no records; give "
            "WebShop's human instructions (items_human_ins.json) here",
        ),
    ],
)
def test_a_file_in_the_place_of_another_is_named(tmp_path: Path, content: Any, role: str, message: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps(content))
    assert message_of(path, role) == message


def load(folder: Path, products: Any, attributes: Any, human: Any = None) -> Any:
    paths = write_files(folder, products, attributes, human)
    return load_catalog(*(Path(paths[key]) for key in ("products", "attributes", "human_goals") if key in paths))


def test_attributes_for_other_products_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"attributes.json has entries for 2 products \(the first is A1\), but for n"):
        load(tmp_path, [raw_product("B1"), raw_product("B2"), raw_product("B3")], ATTRIBUTES)


def test_human_instructions_for_other_products_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"human.json has entries for 1 products .* none of the 1 in .*items.json"):
        load(tmp_path, [raw_product("A2")], ATTRIBUTES, HUMAN)


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    products = [*PRODUCTS, raw_product("A2"), raw_product("A1"), raw_product("nan"), raw_product("A3")]
    reading = load(tmp_path, products, ATTRIBUTES).reading
    assert (reading.num_repeated, reading.num_unusable, reading.num_undescribed) == (2, 1, 1)
    assert reading.examples == {"num_repeated": "A2", "num_unusable": "nan", "num_undescribed": "A3"}


def test_a_catalogue_is_named_by_its_contents(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for folder in folders:
        folder.mkdir()
    one, two = load(folders[0], PRODUCTS, ATTRIBUTES), load(folders[1], PRODUCTS, ATTRIBUTES)
    changed = load(folders[2], PRODUCTS, {**ATTRIBUTES, "A2": {"attributes": ["x"]}})
    assert one.hash == two.hash != changed.hash
    assert len(one.hash) == 16
    assert load(folders[0], PRODUCTS, ATTRIBUTES, HUMAN).hash != one.hash
    packed = tmp_path / "items.json.gz"
    packed.write_bytes(gzip.compress((folders[0] / "items.json").read_bytes()))
    assert load_catalog(packed, folders[0] / "attributes.json").hash == one.hash
