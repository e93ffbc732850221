"""Times search, opening and building at the size of WebShop's full catalogue, and weighs a process that has it open.

What is slow to make (the files, the store) is kept and used again, with the figures of its making. Opening and memory
are measured in a process of their own.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import psutil

from async_agent_rl.errors import EXIT_OK, InputError
from envs.webshop.env import WebShop
from envs.webshop.index import InvertedIndex
from envs.webshop.store import MANIFEST
from envs.webshop.store_build import CatalogFiles, open_or_build
from tools.large_catalog import write_large_catalog

NUM_QUERIES = 2_000
NUM_FIRST = 200
_FILES = ("products.json", "attributes.json", "human.json")
_WAIT_S = 4 * 3600.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CatalogFigures:
    """Of one large catalogue, with human goals."""

    num_products: int
    num_stems: int
    share_of_100th_stem: float
    """Of the products, those with the 100th most frequent stem."""
    build_s: float | None
    """Wall time; None for a store that was there before. A build that is paused takes longer than it need."""
    build_cpu_s: float | None
    build_peak_mb: float | None
    store_mb: float
    open_s: float
    """From the options to a shop that is ready, without the import of the packages."""
    private_mb: float
    """Memory of a process that no other can share, after all searches: pages it has written to."""
    private_before_mb: float
    """The same before opening: Python and the packages."""
    mapped_mb: float
    """Pages of the store in memory, which all processes share. While there is but one process, its unique set size
    counts them too, so that is no measure of what a second one costs."""
    search_first_p50_ms: float
    """Of the first NUM_FIRST queries of a process, other ones: they meet pages it has not mapped yet."""
    search_p50_ms: float
    """With the ten products of the first page; the same for the others."""
    search_p99_ms: float
    search_worst_ms: float
    num_queries: int


class _NoNouns:
    def nouns(self, text: str) -> tuple[str, ...]:
        return ()


def measure_catalog(data: pathlib.Path, num_products: int, cache: pathlib.Path) -> CatalogFigures:
    """Make what is missing, and measure.

    Args:
        data: folder of the catalogue's files.
        num_products: in it; raises InputError where the folder holds another number.
        cache: folder of the store.
    """
    if not all((data / name).is_file() for name in _FILES):
        write_large_catalog(0, num_products, data)
    made = cache / "bench" / f"build-{num_products}.json"
    if not made.is_file():
        made.parent.mkdir(parents=True, exist_ok=True)
        _call("build", data, cache, made)
    measured = made.with_name(f"open-{num_products}.json")
    _call("open", data, cache, measured)
    figures = json.loads(made.read_text()) | json.loads(measured.read_text())
    found = CatalogFigures(**figures)
    if found.num_products != num_products:
        raise InputError(f"{data} holds {found.num_products} products, not {num_products}; name another --data")
    return found


def _call(what: str, data: pathlib.Path, cache: pathlib.Path, out: pathlib.Path) -> None:
    command = [sys.executable, "-m", "tools.bench_webshop_catalog", what, str(data), str(cache), str(out)]
    done = subprocess.run(command, timeout=_WAIT_S, check=False)
    if done.returncode != EXIT_OK:
        raise InputError(f"`{' '.join(command)}` failed with status {done.returncode}; see above")


def _files(data: pathlib.Path) -> CatalogFiles:
    return CatalogFiles(*(data / name for name in _FILES))


def _build(data: pathlib.Path, cache: pathlib.Path) -> dict[str, float | None]:
    before = set(cache.glob(f"*/{MANIFEST}"))
    start, start_cpu = time.perf_counter(), time.process_time()
    store = open_or_build(_files(data), cache)
    sizes = [path.stat().st_size for path in cache.glob(f"{store.manifest.catalog_hash}-*/*")]
    is_new = set(cache.glob(f"*/{MANIFEST}")) != before
    return {
        "build_s": time.perf_counter() - start if is_new else None,
        "build_cpu_s": time.process_time() - start_cpu if is_new else None,
        # Kilobytes on Linux.
        "build_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 if is_new else None,
        "store_mb": sum(sizes) / 1e6,
    }


def _open(data: pathlib.Path, cache: pathlib.Path) -> dict[str, float]:
    process = psutil.Process()
    before = _private_mb(process)
    options: dict[str, Any] = {
        **{role: str(path) for role, path in _files(data).by_role().items()},
        "goals": "human",
        "cache": str(cache),
        "store_above_mb": 0,
    }
    start = time.perf_counter()
    world = WebShop(options, tagger=_NoNouns())
    open_s = time.perf_counter() - start
    store = open_or_build(_files(data), cache)
    goals = store.goals
    # Half of the queries in each style: the goals of people, and those with attributes and options in full.
    kinds = (goals["human"], goals["synthetic"])
    queries = [goal.instruction for kind in kinds for goal in kind[: NUM_QUERIES // 2]]
    first = np.array([_search(world, goal.instruction) for kind in kinds for goal in kind[-NUM_FIRST // 2 :]])
    times = np.array([_search(world, query) for query in queries])
    return {**_describe(store.index, len(world.catalog.products)), **_summarise(times)} | {
        "num_products": len(world.catalog.products),
        "search_first_p50_ms": float(np.median(first)),
        "open_s": open_s,
        "private_mb": _private_mb(process),
        "private_before_mb": before,
        "mapped_mb": sum(region.rss for region in process.memory_maps() if region.path.startswith(str(cache.resolve())))
        / 1e6,
    }


def _private_mb(process: psutil.Process) -> float:
    size_bytes: int = sum(region.private_dirty for region in process.memory_maps())
    return size_bytes / 1e6


def _search(world: WebShop, query: str) -> float:
    start = time.perf_counter()
    tuple(world.shop.searcher.find(query)[:10])
    return (time.perf_counter() - start) * 1e3


def _summarise(times: np.ndarray[tuple[int], np.dtype[np.float64]]) -> dict[str, float]:
    p50, p99 = np.percentile(times, [50, 99])
    return {
        "search_p50_ms": float(p50),
        "search_p99_ms": float(p99),
        "search_worst_ms": float(times.max()),
        "num_queries": len(times),
    }


def _describe(index: InvertedIndex, num_products: int) -> dict[str, float]:
    """How the words are spread: the conditions under which the search is measured."""
    frequencies = np.sort(index.document_frequencies())[::-1]
    return {"num_stems": len(frequencies), "share_of_100th_stem": float(frequencies[99] / num_products)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bench_webshop_catalog", description="Part of bench_webshop.")
    parser.add_argument("what", choices=["build", "open"])
    for name in ("data", "cache", "out"):
        parser.add_argument(name, type=pathlib.Path)
    args = parser.parse_args(argv)
    figures = (_build if args.what == "build" else _open)(args.data, args.cache)
    args.out.write_text(json.dumps(figures))
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
