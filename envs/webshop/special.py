"""WebShop's special queries: `<r>`, `<c> CATEGORY`, `<q> PHRASE`, `<a> ATTRIBUTE`. Off unless asked for.

An agent can use them to look products up without searching, and no published evaluation has them. In the original
`<a>`, a bare `<c>`, and `<r>` in a catalogue of less than 50 products crash; here they find what they ask for, or
nothing. Knows nothing of pages.
"""

from __future__ import annotations

import collections
import functools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from envs.webshop.catalog import Product
from envs.webshop.draws import DATASET_SEED
from envs.webshop.search import MAX_HITS, Searcher


class SpecialSearcher:
    """Answers special queries itself and leaves all others to another searcher."""

    def __init__(self, searcher: Searcher, products: Sequence[Product]) -> None:
        self._searcher = searcher
        self._products = products

    def find(self, query: str) -> Sequence[Product]:
        """Hits in catalogue order, all of them; of `<r>` MAX_HITS, always the same for the same query."""
        sign, *words = query.split(" ")
        rest = " ".join(words)
        if sign == "<r>":
            draw = random.Random(f"{DATASET_SEED} {query}")
            numbers = draw.sample(range(len(self._products)), min(MAX_HITS, len(self._products)))
            return tuple(self._products[number] for number in numbers)
        if sign == "<c>":
            return self._look_up(self._by_category, words[0] if words else "")
        if sign == "<q>":
            return self._look_up(self._by_query, rest)
        if sign == "<a>":
            return self._look_up(self._by_attribute, rest)
        return self._searcher.find(query)

    def _look_up(self, table: Mapping[str, Sequence[int]], name: str) -> tuple[Product, ...]:
        return tuple(self._products[number] for number in table.get(name, ()))

    @functools.cached_property
    def _by_category(self) -> Mapping[str, Sequence[int]]:
        return self._table(lambda product: (product.category,))

    @functools.cached_property
    def _by_query(self) -> Mapping[str, Sequence[int]]:
        return self._table(lambda product: (product.query,))

    @functools.cached_property
    def _by_attribute(self) -> Mapping[str, Sequence[int]]:
        return self._table(lambda product: dict.fromkeys(product.attributes))

    def _table(self, names: Callable[[Product], Iterable[str]]) -> Mapping[str, Sequence[int]]:
        """Numbers of the products by name; reads the whole catalogue once."""
        table: dict[str, list[int]] = collections.defaultdict(list)
        for number, product in enumerate(self._products):
            for name in names(product):
                table[name].append(number)
        return table
