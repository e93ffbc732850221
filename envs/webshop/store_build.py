"""Finds the store of a catalogue, or makes it: in one pass over the products, and all or nothing.

Stores lie side by side in a cache folder, named by what they were made from. A store appears under its name only when
it is whole; what a killed process left behind is swept away by the next one. Knows nothing of goals or pages.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from async_agent_rl.errors import InputError
from envs.webshop.catalog import Product, Reading, usable_products
from envs.webshop.datafile import Role, hash_catalog
from envs.webshop.goal_table import GoalTableBuilder
from envs.webshop.index_build import IndexBuilder, file_allocator
from envs.webshop.json_stream import digest_text, stream_list
from envs.webshop.search import document_text, rank_asins
from envs.webshop.store import (
    GOAL_KINDS,
    MANIFEST,
    PRODUCT_ENDS,
    PRODUCTS,
    RANKED,
    Manifest,
    Store,
    is_store,
    layout_name,
    open_store,
)


@dataclasses.dataclass(frozen=True, slots=True)
class CatalogFiles:
    """The files a catalogue is read from."""

    products: Path
    attributes: Path
    human_goals: Path | None = None

    def by_role(self) -> dict[Role, Path]:
        """Those that are given."""
        roles: dict[Role, Path] = {"products": self.products, "attributes": self.attributes}
        if self.human_goals is not None:
            roles["human_goals"] = self.human_goals
        return roles


def open_or_build(
    files: CatalogFiles, cache: Path, *, require_attributes: bool = False, console: Console | None = None
) -> Store:
    """The store of a catalogue, made first where there is none (about a quarter of a millisecond per product).

    Processes that ask at the same time wait for the one that builds.

    Args:
        files: the source files; after the first time only their size and date are looked at, unless those changed.
        cache: the folder of all stores, made if missing.
        require_attributes: see `load_catalog`.
        console: where progress is shown; the standard error output when None.

    Raises:
        InputError: a file needs mending, or the cache folder cannot hold the store.
    """
    shown = console or Console(stderr=True)
    try:
        (cache / "digests").mkdir(parents=True, exist_ok=True)
        catalog_hash = hash_catalog({role: _digest(path, cache, shown) for role, path in files.by_role().items()})
        folder = cache / f"{catalog_hash}-{layout_name()}"
        if not is_store(folder):
            with _only_one(cache / f"{folder.name}.lock"):
                if not is_store(folder):  # the one before us may have built it
                    _build(files, folder, catalog_hash, shown)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise InputError(
                f"the disk of {cache} is full; free some space, or choose another env.webshop.cache"
            ) from None
        raise InputError(f"the folder {cache} cannot be used for catalogue stores: {error}") from None
    store = open_store(folder, catalog_hash)
    _check_described(store, files, require_attributes)
    return store


def _build(files: CatalogFiles, folder: Path, catalog_hash: str, console: Console) -> None:
    """Build into a folder beside the final one and move it there when it is whole. The lock is held."""
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    for leftover in (unfinished, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    unfinished.mkdir()
    try:
        with _bar(console) as progress:
            task = progress.add_task("building the catalogue store", total=files.products.stat().st_size)
            reading = Reading()
            raw = stream_list(files.products, lambda num_bytes: progress.advance(task, num_bytes))
            products = usable_products(raw, files.products, files.attributes, files.human_goals, reading=reading)
            num_products = _write(products, unfinished)
        # The files that were read must be those that were hashed, however long ago.
        reading.digests["products"] = _digest(files.products, folder.parent, console)
        if hash_catalog(reading.digests) != catalog_hash:
            raise InputError(f"{files.products} or {files.attributes} changed while it was being read; start again")
        manifest = Manifest(layout=layout_name(), catalog_hash=catalog_hash, num_products=num_products, reading=reading)
        (unfinished / MANIFEST).write_bytes(msgspec.json.encode(manifest))
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write(products: Iterator[Product], folder: Path) -> int:
    """Write products and index; returns how many products."""
    builder = IndexBuilder()
    tables = [GoalTableBuilder(kind) for kind in GOAL_KINDS]
    asins: list[str] = []
    ends = [0]
    encoder = msgspec.msgpack.Encoder()
    with (folder / PRODUCTS).open("wb") as blob:
        for product in products:
            try:
                record = encoder.encode(product)
            except UnicodeEncodeError as error:
                raise InputError(
                    f"product {product.asin} holds half a character ({error.object[error.start]!r}), which cannot be "
                    "stored; mend or remove the record"
                ) from None
            blob.write(record)
            for table in tables:
                table.add(len(asins), product)
            ends.append(ends[-1] + len(record))
            asins.append(product.asin)
            builder.add(document_text(product))
    ranks = rank_asins(asins)
    ranked = np.empty(len(asins), np.int32)
    ranked[ranks] = np.arange(len(asins), dtype=np.int32)
    allocate = file_allocator(folder)
    allocate(PRODUCT_ENDS, np.int64, (len(ends),))[:] = ends
    allocate(RANKED, np.int32, ranked.shape)[:] = ranked
    builder.finish(ranks, allocate)
    for table in tables:
        table.finish(folder, allocate)
    return len(asins)


def _digest(path: Path, cache: Path, console: Console) -> bytes:
    """The digest of a file's text, remembered by where the file lies, its size and its date."""
    try:
        state = path.stat()
    except OSError:
        raise InputError(f"{path} does not exist; give the path of a WebShop data file") from None
    signature = repr((str(path.resolve()), state.st_size, state.st_mtime_ns, state.st_ino))
    known = cache / "digests" / hashlib.sha256(signature.encode()).hexdigest()[:32]
    with contextlib.suppress(OSError, ValueError):
        remembered = bytes.fromhex(known.read_text())
        if len(remembered) == hashlib.sha256().digest_size:
            return remembered
    with _bar(console) as progress:
        task = progress.add_task(f"reading {path.name} once", total=state.st_size)
        digest = digest_text(path, lambda num_bytes: progress.advance(task, num_bytes))
    unfinished = known.with_name(f"{known.name}.{os.getpid()}")
    unfinished.write_text(digest.hex())
    unfinished.replace(known)
    return digest


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Hold a lock that ends with the process, however it ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _check_described(store: Store, files: CatalogFiles, require_attributes: bool) -> None:
    reading = store.manifest.reading
    if require_attributes and reading.num_undescribed:
        raise InputError(
            f"{files.attributes} has no entry for {reading.num_undescribed} products of {files.products}, the first of "
            f"them {reading.examples['num_undescribed']}; give the attributes file made for it"
        )


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)
