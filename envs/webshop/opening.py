"""Opens a catalogue with its search index and its goals: a small one in memory, a large one from its store.

Knows nothing of pages, sessions or splits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from async_agent_rl.errors import InputError
from envs.webshop.catalog import Catalog, load_catalog
from envs.webshop.goal_table import StoredGoals
from envs.webshop.goals import Goal, GoalKind, build_goals
from envs.webshop.search import SearchIndex
from envs.webshop.store_build import CatalogFiles, open_or_build

_PACKED = 8
"""A compressed products file counts as so many times its size."""


@dataclasses.dataclass(frozen=True, slots=True)
class OpenCatalog:
    """What a shop is made of. Everything in it is read-only."""

    catalog: Catalog
    searcher: SearchIndex
    goals: Sequence[Goal]
    """In the published order; StoredGoals for a large catalogue."""
    is_stored: bool


def open_catalog(files: CatalogFiles, kind: GoalKind, *, cache: Path, store_above_bytes: int) -> OpenCatalog:
    """Open a catalogue for goals of one kind.

    Args:
        files: the source files.
        kind: of the goals.
        cache: the folder of stores; used for large catalogues only.
        store_above_bytes: size of the products file from which the catalogue is large.

    Raises:
        InputError: a file needs mending, there is no goal, or the cache cannot be used.
    """
    require_attributes = kind == "synthetic"
    if not _is_large(files.products, store_above_bytes):
        catalog = load_catalog(
            files.products, files.attributes, files.human_goals, require_attributes=require_attributes
        )
        return OpenCatalog(catalog, SearchIndex(catalog.products), build_goals(catalog, kind), is_stored=False)
    store = open_or_build(files, cache, require_attributes=require_attributes)
    goals = store.goals[kind]
    if not goals:
        raise InputError(f"{len(store.catalog.products)} products of {files.products} gave no {kind} goal")
    return OpenCatalog(store.catalog, SearchIndex(store.catalog.products, store.index), goals, is_stored=True)


def goal_titles(goals: Sequence[Goal], most: int) -> list[str]:
    """The titles of the products that goals were written for; none where there are more than `most` products."""
    if isinstance(goals, StoredGoals):
        products = goals.owners()
        return [product.title for product in products] if len(products) <= most else []
    titles = {goal.product.asin: goal.product.title for goal in goals}
    return list(titles.values()) if len(titles) <= most else []


def _is_large(products: Path, above_bytes: int) -> bool:
    try:
        size = products.stat().st_size
    except OSError:
        return False  # reading it will say what is wrong
    return size * (_PACKED if products.suffix == ".gz" else 1) > above_bytes
