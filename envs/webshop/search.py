"""Keyword search over a catalogue, as WebShop's Lucene index does it.

Knows nothing of pages or sessions; whoever turns pages keeps the hit list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, overload

import numpy as np
import numpy.typing as npt

from envs.webshop.catalog import Product
from envs.webshop.index import IndexArrays, InvertedIndex
from envs.webshop.index_build import IndexBuilder
from envs.webshop.tokens import terms

MAX_HITS = 50


class Searcher(Protocol):
    """Finds products. Pure: the same query always gives the same hits."""

    def find(self, query: str) -> Sequence[Product]:
        """The hits, best first; those of a large catalogue are read when they are looked at."""
        ...


class SearchIndex:
    """Finds the products of one catalogue by BM25."""

    def __init__(self, products: Sequence[Product], index: InvertedIndex | None = None) -> None:
        """Search in an index.

        Args:
            products: [N] of the catalogue.
            index: over `document_text` of each, ranked by ascending asin; made now when None (about 0.1 ms each).
        """
        self._products = products
        self._index = index or InvertedIndex(_index(products))

    @property
    def index(self) -> InvertedIndex:
        """What it searches in; documents are positions in the catalogue."""
        return self._index

    def find(self, query: str) -> Sequence[Product]:
        """The best MAX_HITS products, best first, ties by ascending asin; none for a query without known terms."""
        positions = self._index.best(terms(query), MAX_HITS).tolist()
        if isinstance(self._products, tuple):
            return tuple(self._products[position] for position in positions)
        return _Hits(self._products, positions)


class _Hits(Sequence[Product]):
    """Some products of a large catalogue, read when they are looked at: most hits never are."""

    def __init__(self, products: Sequence[Product], positions: Sequence[int]) -> None:
        self._products = products
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, place: int) -> Product: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Product]: ...
    def __getitem__(self, place: int | slice) -> Product | Sequence[Product]:
        if isinstance(place, slice):
            return tuple(self._products[position] for position in self._positions[place])
        return self._products[self._positions[place]]


def document_text(product: Product) -> str:
    """What is indexed of a product: title, description, first bullet and options."""
    options = ", and ".join(f"{group.name}: {', '.join(group.values)}" for group in product.options)
    return " ".join(
        (product.title, product.description, product.bullets[0] if product.bullets else "", options)
    ).lower()


def rank_asins(asins: Sequence[str]) -> npt.NDArray[np.int32]:
    """[N] int32: each asin's place in ascending order, by which ties are broken."""
    ranks = np.empty(len(asins), np.int32)
    ranks[sorted(range(len(asins)), key=asins.__getitem__)] = np.arange(len(asins), dtype=np.int32)
    return ranks


def _index(products: Sequence[Product]) -> IndexArrays:
    builder = IndexBuilder()
    for product in products:
        builder.add(document_text(product))
    return builder.finish(rank_asins([product.asin for product in products]))
