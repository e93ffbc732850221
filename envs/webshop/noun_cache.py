"""Nouns of titles kept on disk, so that no title is read by spaCy twice on a machine.

One small database per catalogue and spaCy model, shared by all processes. Knows nothing of products or goals.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import track

from async_agent_rl.errors import InputError
from envs.webshop.nouns import SpacyNounTagger

_REMEMBERED = 50_000
_BATCH = 256
_PATIENCE_S = 60.0


class CachedNounTagger:
    """A spaCy tagger behind a memory of this process and a database of all. Satisfies NounTagger."""

    def __init__(self, tagger: SpacyNounTagger, folder: Path, catalog_hash: str) -> None:
        """Open the database, made if missing.

        Args:
            tagger: reads what is in neither memory; its model and version name the database.
            folder: of all noun databases, made if missing.
            catalog_hash: of the catalogue whose titles are read.

        Raises:
            InputError: the folder or the database cannot be used.
        """
        self._tagger = tagger
        self._path = folder / f"{catalog_hash}-{tagger.version}.sqlite"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Statements commit themselves; the one thread that plays sessions need not be the one that opened.
            self._database = sqlite3.connect(
                self._path, timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False
            )
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=OFF")  # losing the last titles costs milliseconds
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS nouns (title TEXT PRIMARY KEY, nouns BLOB) WITHOUT ROWID"
            )
        except (OSError, sqlite3.Error) as error:
            raise InputError(
                f"{self._path} cannot be used to keep the nouns of titles ({error}); delete it, or choose another "
                "env.webshop.cache"
            ) from None
        self._remember = functools.lru_cache(_REMEMBERED)(self._find)

    def load(self) -> None:
        """Load the pipeline now; see SpacyNounTagger."""
        self._tagger.load()

    def nouns(self, text: str) -> tuple[str, ...]:
        return self._remember(text)

    def read_ahead(self, titles: Iterable[str], console: Console | None = None) -> int:
        """Read many titles in batches, those that are known excepted; returns how many were read.

        Another process may do the same at the same time; both are right.
        """
        missing = [title for title in dict.fromkeys(titles) if _is_text(title) and self._stored(title) is None]
        found = self._tagger.nouns_of_many(missing)
        if len(missing) > _BATCH:
            shown = console or Console(stderr=True)
            found = iter(track(found, "reading titles", total=len(missing), console=shown, transient=True))
        for batch in _batches(zip(missing, found, strict=True)):
            with contextlib.closing(self._database.cursor()) as cursor:
                cursor.execute("BEGIN IMMEDIATE")
                cursor.executemany(_INSERT, [(title, msgspec.msgpack.encode(nouns)) for title, nouns in batch])
                cursor.execute("COMMIT")
        return len(missing)

    def close(self) -> None:
        """Close the database; safe to call twice."""
        self._database.close()

    def _find(self, text: str) -> tuple[str, ...]:
        stored = self._stored(text)
        if stored is None:
            stored = self._tagger.nouns(text)
            # A disk that is full, a database that is locked, a title of half a character: only the reuse is lost.
            with contextlib.suppress(sqlite3.DatabaseError, UnicodeEncodeError):
                self._database.execute(_INSERT, (text, msgspec.msgpack.encode(stored)))
        return stored

    def _stored(self, text: str) -> tuple[str, ...] | None:
        try:
            row = self._database.execute("SELECT nouns FROM nouns WHERE title = ?", (text,)).fetchone()
            return None if row is None else msgspec.msgpack.decode(row[0], type=tuple[str, ...])
        except (UnicodeEncodeError, sqlite3.DatabaseError, msgspec.DecodeError):
            return None  # a title that is no valid text, or a damaged file: read it again


_INSERT = "INSERT OR IGNORE INTO nouns VALUES (?, ?)"
_Pair = tuple[str, tuple[str, ...]]


def _is_text(title: str) -> bool:
    """Whether the title can be written: JSON may hold one half of a surrogate pair."""
    try:
        title.encode()
    except UnicodeEncodeError:
        return False
    return True


def _batches(pairs: Iterable[_Pair]) -> Iterator[list[_Pair]]:
    batch: list[_Pair] = []
    for pair in pairs:
        batch.append(pair)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
