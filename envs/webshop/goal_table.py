"""The goals of a large catalogue: a few numbers per product in a store, and each goal made when it is asked for.

Gives the very goals, order and split of goals.py and splits.py; WebShop's full catalogue has some eight million
synthetic ones. Knows nothing of pages or runs.
"""

from __future__ import annotations

import array
import bisect
import collections
import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import msgspec
import numpy as np
import numpy.typing as npt

from async_agent_rl.env import SPLITS, Split
from envs.webshop.catalog import Product
from envs.webshop.draws import DATASET_SEED
from envs.webshop.goals import Goal, GoalKind, count_goals_of, goals_of, homes_by_product, rarity
from envs.webshop.index_build import Allocate


@dataclasses.dataclass(frozen=True, slots=True)
class GoalArrays:
    """G products that have goals, n goals."""

    places: npt.NDArray[np.int32]
    """[G] positions of the products in the catalogue, ascending."""
    ends: npt.NDArray[np.int64]
    """[G + 1] goals before each of these products, and in all."""
    homes: npt.NDArray[np.uint8]
    """[G] split of each product's goals under `by_product`: its number in SPLITS."""
    order: npt.NDArray[np.int32]
    """[n] the published order: which goal, counted product by product, is number i."""


class GoalTableBuilder:
    """Takes products in catalogue order; `finish` writes the table of one kind of goals."""

    def __init__(self, kind: GoalKind) -> None:
        self._kind: GoalKind = kind
        self._places = array.array("i")
        self._ends = array.array("q", [0])
        self._asins: list[str] = []
        self._counts: collections.Counter[str] = collections.Counter()

    def add(self, place: int, product: Product) -> None:
        """Note a product's goals."""
        num_goals = count_goals_of(product, self._kind)
        if not num_goals:
            return
        self._places.append(place)
        self._ends.append(self._ends[-1] + num_goals)
        self._asins.append(product.asin)
        if self._kind == "synthetic":
            for attribute in set(product.instruction_attributes):
                self._counts[attribute] += num_goals

    def finish(self, folder: Path, allocate: Allocate) -> None:
        """Write the table into a store's folder."""
        num_goals = self._ends[-1]
        order = list(range(num_goals))
        random.Random(DATASET_SEED).shuffle(order)
        numbers = {split: number for number, split in enumerate(SPLITS)}
        homes = homes_by_product(self._asins)
        columns: Mapping[str, npt.NDArray[Any]] = {
            "places": np.array(self._places, np.int32),
            "ends": np.array(self._ends, np.int64),
            "homes": np.array([numbers[homes[asin]] for asin in self._asins], np.uint8),
            "order": np.array(order, np.int32),
        }
        for name, column in columns.items():
            allocate(_file_name(self._kind, name), column.dtype, column.shape)[:] = column
        (folder / f"{_file_name(self._kind, 'counts')}.json").write_bytes(msgspec.json.encode(self._counts))


class StoredGoals(Sequence[Goal]):
    """All goals of a kind in the published order. The same goal may be another object the next time."""

    def __init__(
        self, kind: GoalKind, products: Sequence[Product], arrays: GoalArrays, counts: Mapping[str, int]
    ) -> None:
        """Make goals from a table; `counts` says for each attribute how many synthetic goals have it."""
        self._kind: GoalKind = kind
        self._products = products
        self._arrays = arrays
        self._counts = counts

    def __len__(self) -> int:
        return len(self._arrays.order)

    @overload
    def __getitem__(self, number: int) -> Goal: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Goal]: ...
    def __getitem__(self, number: int | slice) -> Goal | Sequence[Goal]:
        if isinstance(number, slice):
            return [self[single] for single in range(*number.indices(len(self)))]
        arrays = self._arrays
        unshuffled = int(arrays.order[range(len(self))[number]])
        owner = bisect.bisect_right(arrays.ends, unshuffled) - 1
        product = self._products[int(arrays.places[owner])]
        goals = goals_of(product, self._kind)
        goal = next(itertools.islice(goals, unshuffled - int(arrays.ends[owner]), None))
        return dataclasses.replace(goal, weight=rarity(goal, self._counts)) if self._kind == "synthetic" else goal

    def split_by_product(self) -> dict[Split, Sequence[int]]:
        """Goal numbers by split, as splits.split_goals gives them under `by_product`; 4 bytes each."""
        arrays = self._arrays
        homes = np.repeat(arrays.homes, np.diff(arrays.ends))[arrays.order]
        return {
            split: _Numbers(np.flatnonzero(homes == number).astype(np.int32)) for number, split in enumerate(SPLITS)
        }

    def owners(self) -> Sequence[Product]:
        """[G] the products that have goals, in catalogue order."""
        return _Chosen(self._products, self._arrays.places)


class _Chosen(Sequence[Product]):
    """Some products of a catalogue, read when asked for."""

    def __init__(self, products: Sequence[Product], places: npt.NDArray[np.int32]) -> None:
        self._products = products
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> Product: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Product]: ...
    def __getitem__(self, place: int | slice) -> Product | Sequence[Product]:
        if isinstance(place, slice):
            return _Chosen(self._products, self._places[place])
        return self._products[int(self._places[place])]


class _Numbers(Sequence[int]):
    """Goal numbers as plain ints over an array."""

    def __init__(self, numbers: npt.NDArray[np.int32]) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[int]: ...
    def __getitem__(self, place: int | slice) -> int | Sequence[int]:
        return _Numbers(self._numbers[place]) if isinstance(place, slice) else int(self._numbers[place])


def open_goals(folder: Path, kind: GoalKind, products: Sequence[Product]) -> StoredGoals:
    """The goals of a store. Raises OSError or ValueError when a file is missing or damaged."""
    columns = {
        field.name: np.asarray(np.load(folder / f"{_file_name(kind, field.name)}.npy", mmap_mode="r"))
        for field in dataclasses.fields(GoalArrays)
    }
    counts = msgspec.json.decode((folder / f"{_file_name(kind, 'counts')}.json").read_bytes(), type=dict[str, int])
    return StoredGoals(kind, products, GoalArrays(**columns), counts)


def _file_name(kind: GoalKind, name: str) -> str:
    return f"goals_{kind}_{name}"
