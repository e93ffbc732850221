"""Catalogue stores: the same products, goals and hits as in memory; whole or not there; shared and cheap to open."""

from __future__ import annotations

import dataclasses
import gzip
import json
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from rich.console import Console

from async_agent_rl.errors import InputError
from envs.webshop import json_stream, store_build
from envs.webshop.catalog import load_catalog
from envs.webshop.env import WebShop
from envs.webshop.goals import GoalKind, build_goals
from envs.webshop.json_stream import digest_text, stream_list
from envs.webshop.options import EMBEDDED_CATALOG
from envs.webshop.search import SearchIndex
from envs.webshop.splits import split_goals
from envs.webshop.store import MANIFEST, Store, is_store, open_store
from envs.webshop.store_build import CatalogFiles, open_or_build
from tests.webshop_samples import WordTagger, raw_product, write_files

EMBEDDED = CatalogFiles(EMBEDDED_CATALOG / "products.json.gz", EMBEDDED_CATALOG / "attributes.json.gz")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def store(cache: Path) -> Store:
    return open_or_build(EMBEDDED, cache, console=Console(quiet=True))


def small_files(folder: Path, *asins: str) -> CatalogFiles:
    folder.mkdir(exist_ok=True)
    mined = {asin: {"attributes": ["solid wood"]} for asin in asins}
    human = {
        asins[0]: [
            {"instruction": "a table.", "instruction_attributes": ["solid wood"], "instruction_options": []},
            {"instruction": "nothing", "instruction_attributes": [], "instruction_options": []},
        ]
    }
    paths = write_files(folder, [raw_product(asin) for asin in asins], mined, human)
    return CatalogFiles(Path(paths["products"]), Path(paths["attributes"]), Path(paths["human_goals"]))


def folders(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.is_dir() and path.name != "digests"]


def test_stored_products_are_those_of_the_files(store: Store) -> None:
    loaded = load_catalog(EMBEDDED.products, EMBEDDED.attributes)
    assert len(store.catalog.products) == len(loaded.products) == 1020
    for stored, product in zip(store.catalog.products, loaded.products, strict=True):
        assert dataclasses.astuple(stored) == dataclasses.astuple(product)
    assert store.catalog.hash == loaded.hash
    assert store.catalog.products[-1].asin == loaded.products[-1].asin
    assert [product.asin for product in store.catalog.products[3:5]] == [p.asin for p in loaded.products[3:5]]


def test_products_are_found_by_asin(store: Store) -> None:
    for product in store.catalog.products[::100]:
        assert store.catalog.by_asin[product.asin].title == product.title
    assert "NOTHING" not in store.catalog.by_asin
    assert len(store.catalog.by_asin) == len(list(store.catalog.by_asin)) == 1020
    with pytest.raises(IndexError):
        store.catalog.products[1020]


def test_a_store_finds_what_an_index_in_memory_finds(store: Store) -> None:
    loaded = load_catalog(EMBEDDED.products, EMBEDDED.attributes)
    in_memory, stored = SearchIndex(loaded.products), SearchIndex(store.catalog.products, store.index)
    for goal in build_goals(loaded, "synthetic")[:100]:
        query = goal.instruction
        assert [hit.asin for hit in stored.find(query)] == [hit.asin for hit in in_memory.find(query)]


def test_stored_goals_are_those_of_the_files_in_the_published_order(store: Store) -> None:
    goals, stored = (
        build_goals(load_catalog(EMBEDDED.products, EMBEDDED.attributes), "synthetic"),
        store.goals["synthetic"],
    )
    assert len(stored) == len(goals) > 6000
    for number in [*range(0, len(goals), 97), -1]:
        assert dataclasses.asdict(stored[number]) == dataclasses.asdict(goals[number])
    assert [goal.instruction for goal in stored[2:4]] == [goal.instruction for goal in goals[2:4]]
    assert {product.asin for product in store.goals["synthetic"].owners()} == {goal.product.asin for goal in goals}


def test_stored_goals_split_by_product_as_all_others(store: Store) -> None:
    goals = build_goals(load_catalog(EMBEDDED.products, EMBEDDED.attributes), "synthetic")
    expected = split_goals(goals, "by_product", "synthetic")
    stored = split_goals(store.goals["synthetic"], "by_product", "synthetic")
    assert {split: list(numbers) for split, numbers in stored.items()} == expected
    assert list(stored["test"][:3]) == list(expected["test"][:3])


def test_human_goals_are_stored_too(tmp_path: Path) -> None:
    store = open_or_build(small_files(tmp_path / "data", "A1", "A2"), tmp_path / "cache")
    (goal,) = store.goals["human"]
    assert goal.instruction.startswith("a table, and price lower than")
    assert len(store.goals["synthetic"]) == 0


@pytest.mark.parametrize("kind", ["synthetic", "human"])
def test_a_world_over_a_store_is_the_world_in_memory(tmp_path: Path, kind: GoalKind) -> None:
    options = {"goals": kind, "cache": str(tmp_path / "cache")}
    if kind == "human":
        files = small_files(tmp_path / "data", "A1", "A2", "A3")
        options |= {"products": str(files.products), "attributes": str(files.attributes)}
        options |= {"human_goals": str(files.human_goals)}
    # A megabyte is more than the compressed file has, so 0 is what makes the catalogue large.
    stored, loaded = (WebShop({**options, "store_above_mb": above}, tagger=WordTagger()) for above in (0, 64))
    assert stored.catalog_hash == loaded.catalog_hash
    assert len(folders(tmp_path / "cache")) == 1
    for split in ("train", "validation", "test"):
        assert stored.num_tasks(split) == loaded.num_tasks(split)
    goals = [world.goal("train", 0) for world in (stored, loaded)]
    sessions = [world.session(goal) for world, goal in zip((stored, loaded), goals, strict=True)]
    pages = [
        session.act(f"search[{goal.instruction}]").page.text for session, goal in zip(sessions, goals, strict=True)
    ]
    assert pages[0] == pages[1]
    assert "Page 1 (Total results: 0)" not in pages[0]


def test_opening_again_reads_no_source_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = small_files(tmp_path / "data", "A1")
    open_or_build(files, tmp_path / "cache")
    monkeypatch.setattr(store_build, "digest_text", lambda *_: pytest.fail("the file was read again"))
    monkeypatch.setattr(store_build, "usable_products", lambda *_, **__: pytest.fail("built again"))
    assert len(open_or_build(files, tmp_path / "cache").catalog.products) == 1


def test_a_changed_file_gets_a_store_of_its_own(tmp_path: Path) -> None:
    first = open_or_build(small_files(tmp_path / "data", "A1"), tmp_path / "cache")
    second = open_or_build(small_files(tmp_path / "data", "A1", "A2"), tmp_path / "cache")
    assert [len(store.catalog.products) for store in (first, second)] == [1, 2]
    assert len(folders(tmp_path / "cache")) == 2


def test_compression_and_place_make_no_other_catalogue(tmp_path: Path) -> None:
    files = small_files(tmp_path / "data", "A1")
    packed = tmp_path / "elsewhere.json.gz"
    packed.write_bytes(gzip.compress(files.products.read_bytes()))
    one = open_or_build(files, tmp_path / "cache")
    other = open_or_build(dataclasses.replace(files, products=packed), tmp_path / "cache")
    assert one.manifest == other.manifest
    assert len(folders(tmp_path / "cache")) == 1


def test_an_index_of_another_catalogue_is_refused(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    open_or_build(small_files(tmp_path / "one", "A1"), cache)
    (first,) = folders(cache)
    files = small_files(tmp_path / "two", "A1", "A2")
    open_or_build(files, cache)
    (second,) = set(folders(cache)) - {first}
    shutil.rmtree(second)
    shutil.copytree(first, second)
    with pytest.raises(InputError, match=r"was built for catalogue \w+, but the files given are catalogue \w+; delete"):
        open_or_build(files, cache)


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    store = open_or_build(small_files(tmp_path / "data", "A1"), tmp_path)
    (folder,) = (path for path in folders(tmp_path) if path.name != "data")
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, "layout": "older"}))
    with pytest.raises(InputError, match="another version"):
        open_store(folder, store.manifest.catalog_hash)


@pytest.mark.parametrize("damage", ["documents.npy", "products.msgpack", "goals_human_counts.json"])
def test_a_store_that_lacks_a_file_is_damaged(tmp_path: Path, damage: str) -> None:
    store = open_or_build(small_files(tmp_path / "data", "A1"), tmp_path)
    (folder,) = (path for path in folders(tmp_path) if path.name != "data")
    (folder / damage).unlink()
    with pytest.raises(InputError, match="is damaged"):
        open_store(folder, store.manifest.catalog_hash)


def test_a_builder_that_is_killed_leaves_no_store_and_the_next_one_succeeds(tmp_path: Path) -> None:
    files = small_files(tmp_path / "data", "A1", "A2")
    script = f"""
        import os, pathlib, signal
        from envs.webshop import store_build
        finish = store_build.IndexBuilder.finish
        def die(builder, *arguments):
            finish(builder, *arguments)  # almost all files are there
            os.kill(os.getpid(), signal.SIGKILL)
        store_build.IndexBuilder.finish = die
        paths = [pathlib.Path(path) for path in {[str(files.products), str(files.attributes)]!r}]
        store_build.open_or_build(store_build.CatalogFiles(*paths), pathlib.Path({str(tmp_path / "cache")!r}))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    (leftover,) = folders(tmp_path / "cache")
    assert leftover.name.endswith(".unfinished")
    assert not is_store(leftover)
    pair = CatalogFiles(files.products, files.attributes)
    assert len(open_or_build(pair, tmp_path / "cache").catalog.products) == 2
    assert not leftover.exists()


def test_an_error_while_building_leaves_nothing(tmp_path: Path) -> None:
    files = small_files(tmp_path / "data", "A1")
    files.products.write_text(json.dumps([raw_product("A1"), raw_product("A2", pricing="free")]))
    with pytest.raises(InputError, match="A2"):
        open_or_build(files, tmp_path / "cache")
    assert folders(tmp_path / "cache") == []


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = small_files(tmp_path / "data", "A1")
    build = store_build._write

    def change_meanwhile(*arguments: object) -> int:
        num_products = build(*arguments)  # type: ignore[arg-type]
        files.products.write_text(json.dumps([raw_product("A1"), raw_product("A3")]))
        return num_products

    monkeypatch.setattr(store_build, "_write", change_meanwhile)
    with pytest.raises(InputError, match="changed while it was being read"):
        open_or_build(files, tmp_path / "cache")
    assert folders(tmp_path / "cache") == []


def test_two_processes_build_once(tmp_path: Path) -> None:
    files = small_files(tmp_path / "data", "A1", "A2")
    script = f"""
        import pathlib
        from envs.webshop import store_build
        write = store_build._write
        def tell(*arguments):
            print("built")
            return write(*arguments)
        store_build._write = tell
        paths = [pathlib.Path(path) for path in {[str(files.products), str(files.attributes)]!r}]
        store = store_build.open_or_build(store_build.CatalogFiles(*paths), pathlib.Path({str(tmp_path / "cache")!r}))
        print(len(store.catalog.products))
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    lines = [line for process in processes for line in process.communicate(timeout=60)[0].split()]
    assert sorted(lines) == ["2", "2", "built"]


def test_a_product_that_the_attributes_file_lacks_is_refused_for_synthetic_goals(tmp_path: Path) -> None:
    files = small_files(tmp_path / "data", "A1", "A2")
    files.attributes.write_text(json.dumps({"A1": {"attributes": ["solid wood"]}}))
    assert len(open_or_build(files, tmp_path / "cache").catalog.products) == 2
    with pytest.raises(InputError, match=r"no entry for 1 products of .*, the first of them A2"):
        open_or_build(files, tmp_path / "cache", require_attributes=True)


def test_half_a_character_is_refused(tmp_path: Path) -> None:
    files = small_files(tmp_path / "data", "A1")
    files.products.write_text(json.dumps([raw_product("A1", name="\ud800")]))
    with pytest.raises(InputError, match="product A1 holds half a character"):
        open_or_build(files, tmp_path / "cache")


def test_a_cache_that_is_no_folder_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(InputError, match="cannot be used for catalogue stores"):
        open_or_build(small_files(tmp_path / "data", "A1"), tmp_path / "cache")


@pytest.mark.parametrize("chunk", [1, 2, 7, 64, 10**6])
@pytest.mark.parametrize("packed", [False, True])
def test_a_list_is_read_record_by_record_whatever_the_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, packed: bool
) -> None:
    records = [{"asin": "A1", "name": 'a "quoted" ü € \U0001f600 \\ ]},['}, 12345, [], {}, "x", None, 1.5e3]
    for text in (json.dumps(records), json.dumps(records, ensure_ascii=False, indent=2), " [\n] ", "[12]"):
        path = tmp_path / ("list.json.gz" if packed else "list.json")
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
        monkeypatch.setattr(json_stream, "_CHUNK_BYTES", chunk)
        read: list[int] = []
        assert list(stream_list(path, read.append)) == json.loads(text)
        assert sum(read) == path.stat().st_size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"asin": "A1"}, {"asin": "A2"', r"ends in the middle of record 1, after 1 whole ones, the last of them A1"),
        ('[{"asin": "A1"}, {"asin": "A', r"ends in the middle of record 1"),
        ('[{"asin": "A1"}', r"ends in the middle of record 1"),
        ('[{"asin": "A1"},', r"ends in the middle of record 1"),
        ("[", r"ends in the middle of record 0"),
        ('[{"asin": "A1"} {}]', r"is not valid JSON: record 1 \(line 1\): '\{' instead of a comma"),
        ('[\n{"asin": "A1"},\n{"asin": oops}]', r"is not valid JSON: record 1 \(line 3\): Expecting value"),
        ("[{}] more", r"more text behind the end of the list"),
        ('{"A1": {}}', r"must hold a JSON list of products, but starts with '\{"),
        ("", r"must hold a JSON list of products, but starts with ''"),
    ],
)
@pytest.mark.parametrize("chunk", [3, 10**6])
def test_a_damaged_list_is_refused_with_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str, chunk: int
) -> None:
    (tmp_path / "list.json").write_text(text)
    monkeypatch.setattr(json_stream, "_CHUNK_BYTES", chunk)
    with pytest.raises(InputError, match=message):
        list(stream_list(tmp_path / "list.json"))


def test_damage_is_not_searched_for_to_the_end_of_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "_CHUNK_BYTES", 16)
    monkeypatch.setattr(json_stream, "_LARGEST_RECORD", 64)
    path = tmp_path / "list.json"
    path.write_text('[{"a": oops' + " " * 10_000)
    read: list[int] = []
    with pytest.raises(InputError, match="Expecting value"):
        list(stream_list(path, read.append))
    assert sum(read) < 200


def test_damaged_files_are_bad_input(tmp_path: Path) -> None:
    packed = tmp_path / "list.json.gz"
    packed.write_bytes(gzip.compress(b"[1, 2, 3]" * 1000)[:-20])
    (tmp_path / "latin.json").write_bytes(b'["\xe9"]')
    for name, message in (("list.json.gz", "damaged gzip"), ("latin.json", "not UTF-8"), ("no.json", "does not exist")):
        with pytest.raises(InputError, match=message):
            list(stream_list(tmp_path / name))
    for name in ("list.json.gz", "no.json"):
        with pytest.raises(InputError, match=name):
            digest_text(tmp_path / name)


def test_private_memory_holds_few_products(store: Store) -> None:
    products = store.catalog.products
    first = products[0]
    assert products[0] is first  # remembered
    assert sum(1 for _ in products) == 1020
