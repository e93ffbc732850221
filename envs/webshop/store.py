"""A large catalogue on disk: products and search index as files that all processes of a machine map and share.

A store is one folder, made once per catalogue (store_build.py) and never changed. Products are decoded when asked for.
Knows nothing of pages or of where stores are kept.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import hashlib
import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import msgspec
import numpy as np
import numpy.typing as npt

from async_agent_rl.errors import InputError
from envs.webshop.catalog import Catalog, OptionGroup, Product, Reading
from envs.webshop.goal_table import StoredGoals, open_goals
from envs.webshop.goals import GoalKind
from envs.webshop.index import InvertedIndex
from envs.webshop.index_build import open_arrays

MANIFEST = "manifest.json"
PRODUCTS = "products.msgpack"
PRODUCT_ENDS = "product_ends"
RANKED = "ranked"
GOAL_KINDS: tuple[GoalKind, ...] = ("synthetic", "human")
_FORMAT = 2
_REMEMBERED = 4096
"""Products kept decoded, a few kilobytes each."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a store was made from. Written last: a folder without it is not a store."""

    layout: str
    """`layout_name` of the program that made it."""
    catalog_hash: str
    """Names the contents of the source files."""
    num_products: int
    reading: Reading
    """What was left out and why."""


class StoredProducts(Sequence[Product]):
    """All products in file order, read when asked for. The same product may be another object the next time."""

    def __init__(self, blob: memoryview, ends: npt.NDArray[np.int64]) -> None:
        self._blob = blob
        self._ends = ends
        self._decoder = msgspec.msgpack.Decoder(Product)
        self._at = functools.lru_cache(_REMEMBERED)(self._decode)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, place: int) -> Product: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Product]: ...
    def __getitem__(self, place: int | slice) -> Product | Sequence[Product]:
        if isinstance(place, slice):
            return [self._at(number) for number in range(*place.indices(len(self)))]
        return self._at(range(len(self))[place])

    def __iter__(self) -> Iterator[Product]:
        return map(self._decode, range(len(self)))  # leaves the remembered ones alone

    def _decode(self, place: int) -> Product:
        return self._decoder.decode(self._blob[self._ends[place] : self._ends[place + 1]])


class StoredAsins(Mapping[str, Product]):
    """From asin to product, by binary search."""

    def __init__(self, products: StoredProducts, ranked: npt.NDArray[np.int32]) -> None:
        """Look up in products; `ranked` is [N] their positions in ascending order of asin."""
        self._products = products
        self._ranked = ranked

    def __getitem__(self, asin: str) -> Product:
        ranked = self._ranked
        rank = bisect.bisect_left(range(len(ranked)), asin, key=lambda rank: self._products[int(ranked[rank])].asin)
        if rank < len(ranked) and (product := self._products[int(ranked[rank])]).asin == asin:
            return product
        raise KeyError(asin)

    def __len__(self) -> int:
        return len(self._products)

    def __iter__(self) -> Iterator[str]:
        return (product.asin for product in self._products)


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """An open store. Everything in it is read-only."""

    manifest: Manifest
    catalog: Catalog
    index: InvertedIndex
    goals: Mapping[GoalKind, StoredGoals]
    """May be empty sequences."""


def open_store(folder: Path, catalog_hash: str) -> Store:
    """Map a store. Takes milliseconds, whatever its size.

    Raises:
        InputError: the folder is no whole store, or one of another catalogue or of another version of this program.
    """
    manifest = _read_manifest(folder)
    if manifest.catalog_hash != catalog_hash:
        raise InputError(
            f"the search index in {folder} was built for catalogue {manifest.catalog_hash}, but the files given are "
            f"catalogue {catalog_hash}; delete that folder, and it is built again"
        )
    if manifest.layout != layout_name():
        raise InputError(f"{folder} was built by another version of this program; delete it, and it is built again")
    try:
        arrays = open_arrays(folder)
        ends = _map_array(folder, PRODUCT_ENDS)
        products = StoredProducts(_map_bytes(folder / PRODUCTS), ends)
        goals = {kind: open_goals(folder, kind, products) for kind in GOAL_KINDS}
        asins = StoredAsins(products, _map_array(folder, RANKED))
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise InputError(
            f"the catalogue store in {folder} is damaged ({error}); delete it, and it is built again"
        ) from None
    if len(products) != manifest.num_products or len(arrays.lengths) != manifest.num_products:
        raise InputError(f"the catalogue store in {folder} is damaged; delete it, and it is built again")
    catalog = Catalog(products, asins, hash=manifest.catalog_hash, reading=manifest.reading)
    return Store(manifest, catalog, InvertedIndex(arrays), goals)


def is_store(folder: Path) -> bool:
    """Whether the folder was built to the end."""
    return (folder / MANIFEST).is_file()


@functools.cache
def layout_name() -> str:
    """Names how stores of this program are laid out: changes with the fields of a product."""
    fields = [field.name for kind in (Product, OptionGroup, Reading) for field in dataclasses.fields(kind)]
    return hashlib.sha256(repr((_FORMAT, fields)).encode()).hexdigest()[:8]


def _read_manifest(folder: Path) -> Manifest:
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise InputError(f"{folder} holds no catalogue store; delete it, and it is built again") from None
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(
            f"{folder / MANIFEST} cannot be read ({error}); delete the folder, and it is built again"
        ) from None


def _map_array(folder: Path, name: str) -> npt.NDArray[Any]:
    return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))


def _map_bytes(path: Path) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
