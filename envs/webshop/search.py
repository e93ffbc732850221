"""Keyword search over a catalogue: BM25 as WebShop's Lucene index computes it.

Knows nothing of pages or sessions; whoever turns pages keeps the hit list.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from envs.webshop.catalog import Product
from envs.webshop.tokens import terms

MAX_HITS = 50
K1 = np.float32(0.9)
B = np.float32(0.4)


class Searcher(Protocol):
    """Finds products. Pure: the same query always gives the same hits."""

    def find(self, query: str) -> tuple[Product, ...]: ...


class SearchIndex:
    """An inverted index over the products of one catalogue."""

    def __init__(self, products: Sequence[Product]) -> None:
        """Index the products; about 0.2 ms each."""
        # In asin order, so that a stable sort by score breaks ties by ascending asin.
        self._products = sorted(products, key=lambda product: product.asin)
        documents = [terms(document_text(product)) for product in self._products]
        lengths = np.array([lossy_length(len(document)) for document in documents], dtype=np.float32)
        mean_length = np.float32(sum(map(len, documents)) / max(len(documents), 1)) or np.float32(1)
        norms = K1 * ((np.float32(1) - B) + B * lengths / mean_length)
        rows: dict[str, list[tuple[int, int]]] = collections.defaultdict(list)
        for row, document in enumerate(documents):
            for term, count in collections.Counter(document).items():
                rows[term].append((row, count))
        self._postings: dict[str, _Postings] = {}
        for term, entries in rows.items():
            documents_with = np.array([row for row, _ in entries], dtype=np.int64)
            counts = np.array([count for _, count in entries], dtype=np.float32)
            self._postings[term] = (documents_with, (counts / (counts + norms[documents_with])).astype(np.float32))

    def find(self, query: str) -> tuple[Product, ...]:
        """The best MAX_HITS products, best first, ties by ascending asin; none for a query without known terms."""
        num_products = len(self._products)
        scores = np.zeros(num_products, dtype=np.float64)
        for term, count in collections.Counter(terms(query)).items():
            if term in self._postings:
                documents_with, saturations = self._postings[term]
                scores[documents_with] += (
                    np.float32(count * inverse_frequency(num_products, len(saturations))) * saturations
                )
        # Lucene sums in double precision and compares what is left in single precision.
        found = np.flatnonzero(scores)
        order = np.argsort(-scores[found].astype(np.float32), kind="stable")[:MAX_HITS]
        return tuple(self._products[row] for row in found[order])


_Postings = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]
"""[D] rows of the documents that hold a term, and [D] its tf / (tf + norm) in each."""


def document_text(product: Product) -> str:
    """What is indexed of a product: title, description, first bullet and options."""
    options = ", and ".join(f"{group.name}: {', '.join(group.values)}" for group in product.options)
    return " ".join(
        (product.title, product.description, product.bullets[0] if product.bullets else "", options)
    ).lower()


def inverse_frequency(num_documents: int, num_with_term: int) -> float:
    """BM25's weight of a term, Lucene's form: never negative."""
    return math.log(1 + (num_documents - num_with_term + 0.5) / (num_with_term + 0.5))


def lossy_length(length: int) -> int:
    """A document length in terms as Lucene keeps it in one byte: exact below 40, then coarser and coarser."""
    above = length - 24
    shift = max(above.bit_length() - 4, 0) if above > 0 else 0
    return 24 + ((above >> shift) << shift) if shift else length
