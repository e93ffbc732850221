"""Nouns kept on disk: read once per machine, model and catalogue, and never wrong for it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from async_agent_rl.errors import InputError
from envs.webshop.env import WebShop
from envs.webshop.noun_cache import CachedNounTagger
from envs.webshop.nouns import SpacyNounTagger
from tests.webshop_samples import raw_product, write_files


class CountingTagger:
    """Stands in for spaCy: every word is a noun, and what was read is noted."""

    def __init__(self, version: str = "words-1.0") -> None:
        self.version = version
        self.read: list[str] = []

    def load(self) -> None:
        pass

    def nouns(self, text: str) -> tuple[str, ...]:
        self.read.append(text)
        return tuple(text.lower().split())

    def nouns_of_many(self, texts: Iterable[str]) -> Iterator[tuple[str, ...]]:
        return map(self.nouns, texts)


def cached(tagger: CountingTagger, folder: Path, catalog_hash: str = "abc") -> CachedNounTagger:
    return CachedNounTagger(tagger, folder, catalog_hash)  # type: ignore[arg-type]


def test_a_title_is_read_once_by_all_processes(tmp_path: Path) -> None:
    first, second = CountingTagger(), CountingTagger()
    assert cached(first, tmp_path).nouns("Oak Table Oak") == ("oak", "table", "oak")
    other = cached(second, tmp_path)
    assert other.nouns("Oak Table Oak") == other.nouns("Oak Table Oak") == ("oak", "table", "oak")
    assert (first.read, second.read) == (["Oak Table Oak"], [])


@pytest.mark.parametrize(("version", "catalog_hash"), [("words-2.0", "abc"), ("words-1.0", "def")])
def test_another_model_or_catalogue_shares_nothing(tmp_path: Path, version: str, catalog_hash: str) -> None:
    cached(CountingTagger(), tmp_path).nouns("Oak Table")
    other = CountingTagger(version)
    cached(other, tmp_path, catalog_hash).nouns("Oak Table")
    assert other.read == ["Oak Table"]


def test_reading_ahead_reads_only_what_is_missing(tmp_path: Path) -> None:
    tagger = CountingTagger()
    cache = cached(tagger, tmp_path)
    cache.nouns("one")
    titles = ["one", *(f"title {number}" for number in range(600)), "title 3"]
    assert cache.read_ahead(titles, Console(quiet=True)) == 600
    assert cache.read_ahead(titles, Console(quiet=True)) == 0
    assert len(tagger.read) == 601
    assert cached(CountingTagger(), tmp_path).nouns("title 599") == ("title", "599")


def test_a_title_that_is_no_valid_text_is_read_each_time(tmp_path: Path) -> None:
    cache = cached(CountingTagger(), tmp_path)
    assert cache.nouns("half \ud800") == ("half", "\ud800")
    assert cache.read_ahead(["half \ud800"]) == 0


def test_a_damaged_database_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "abc-words-1.0.sqlite").write_text("no database " * 100)
    with pytest.raises(InputError, match="delete it, or choose another"):
        cached(CountingTagger(), tmp_path)


def test_closing_twice_is_fine(tmp_path: Path) -> None:
    cache = cached(CountingTagger(), tmp_path)
    cache.close()
    cache.close()


def test_spacy_gives_the_same_nouns_one_by_one_and_in_batches(tmp_path: Path) -> None:
    tagger = SpacyNounTagger()
    titles = ["Solid Oak Table for Living Room", "Women's Long Sleeve Dress", "", "4K Listed Bar Bar"]
    assert list(tagger.nouns_of_many(titles)) == [tagger.nouns(title) for title in titles]
    assert list(tagger.nouns_of_many([])) == []
    cache = CachedNounTagger(tagger, tmp_path, "abc")
    cache.read_ahead(titles)
    assert [cache.nouns(title) for title in titles] == [tagger.nouns(title) for title in titles]


def test_the_version_names_model_and_spacy_without_loading_them() -> None:
    tagger = SpacyNounTagger()
    assert tagger.version.startswith(f"{tagger.model}-")
    assert "-spacy-3." in tagger.version


def test_the_titles_of_goals_are_read_before_the_first_episode(tmp_path: Path) -> None:
    names = {"A1": "Oak Table", "A2": "Red Dress"}
    records = [raw_product(asin, name=name) for asin, name in names.items()]
    mined = {asin: {"attributes": ["solid wood"]} for asin in names}
    mined["A1"] |= {"instruction": "Find me tables", "instruction_attributes": ["solid wood"]}
    options = write_files(tmp_path, records, mined) | {"cache": str(tmp_path / "cache")}
    world = WebShop(options)
    world.new_env()
    (database,) = (tmp_path / "cache" / "nouns").glob(f"{world.catalog_hash}-en_core_web_sm*.sqlite")
    rows = sqlite3.connect(database).execute("SELECT title FROM nouns").fetchall()
    assert rows == [("Oak Table",)]


def test_a_small_catalogue_writes_nothing_unless_told_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    WebShop({}).new_env()
    assert list(tmp_path.iterdir()) == []
