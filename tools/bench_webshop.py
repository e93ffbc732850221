"""How fast the shop is, and how large it may get: `python -m tools.bench_webshop --json OUT`.

Everything is measured in one run on one core: our steps against a re-enactment of the original's, the reset, the warm
reward, and search, opening and memory at the size of WebShop's full catalogue, which is made and built first where it
is not there (minutes). Each figure stands beside what it is to be; the exit status is 1 where one is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import platform
import sys
import tempfile
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from async_agent_rl.errors import EXIT_BAD_INPUT, EXIT_OK, EXIT_RUN_FAILED, InputError
from envs.webshop.options import default_cache
from tools.bench_webshop_catalog import CatalogFigures, measure_catalog
from tools.bench_webshop_steps import StepFigures, measure_steps
from tools.large_catalog import FULL_SIZE, MIN_PRODUCTS


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One figure and its limit."""

    name: str
    value: float
    limit: float
    unit: str
    at_most: bool = True

    @property
    def is_met(self) -> bool:
        return self.value <= self.limit if self.at_most else self.value >= self.limit


def checks_of(steps: StepFigures, catalog: CatalogFigures | None) -> list[Check]:
    """Every promise with its figure."""
    checks = [
        Check("steps/s over the original's", steps.ratio, 100, "x", at_most=False),
        Check("reset", steps.reset_ms, 0.1, "ms"),
        Check("reward, nouns known", steps.reward_ms, 1, "ms"),
        Check("sessions alive after 1,000 ended", steps.num_sessions_left, 0, ""),
    ]
    if catalog is not None:
        checks += [
            Check("search, median", catalog.search_p50_ms, 5, "ms"),
            Check("search, 99th percentile", catalog.search_p99_ms, 25, "ms"),
            Check("distinct stems", catalog.num_stems, 50_000, "", at_most=False),
            Check("share of products with the 100th stem", catalog.share_of_100th_stem * 100, 5, "%", at_most=False),
            Check("opening", catalog.open_s, 3, "s"),
            Check("private memory of a process", catalog.private_mb, 300, "MB"),
        ]
        if catalog.build_peak_mb is not None:
            checks.append(Check("memory while building", catalog.build_peak_mb, 6000, "MB"))
    return checks


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bench_webshop", description="Measure the shop.")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures into this file")
    parser.add_argument("--products", type=int, default=FULL_SIZE, help="of the large catalogue, default %(default)s")
    parser.add_argument("--data", type=pathlib.Path, help="folder of the large catalogue's files, made if missing")
    parser.add_argument("--cache", type=pathlib.Path, default=default_cache(), help="of stores, default %(default)s")
    parser.add_argument("--steps-only", action="store_true", help="leave the large catalogue out")
    args = parser.parse_args(argv)
    if args.products < MIN_PRODUCTS:
        print(f"--products must be at least {MIN_PRODUCTS}, got {args.products}", file=sys.stderr)
        return EXIT_BAD_INPUT
    data = args.data or pathlib.Path(tempfile.gettempdir()) / f"async-agent-rl-catalog-{args.products}"
    try:
        steps = measure_steps()
        catalog = None if args.steps_only else measure_catalog(data, args.products, args.cache)
    except InputError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_INPUT
    checks = checks_of(steps, catalog)
    _show(checks, steps)
    is_met = steps.is_valid and all(check.is_met for check in checks)
    if args.json is not None:
        report = {
            "python": platform.python_version(),
            "machine": platform.processor() or platform.machine(),
            "steps": dataclasses.asdict(steps) | {"is_valid": steps.is_valid, "ratio": steps.ratio},
            "catalog": None if catalog is None else dataclasses.asdict(catalog),
            "checks": [dataclasses.asdict(check) | {"is_met": check.is_met} for check in checks],
            "is_met": is_met,
        }
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return EXIT_OK if is_met else EXIT_RUN_FAILED


def _show(checks: Sequence[Check], steps: StepFigures) -> None:
    table = Table("figure", "measured", "wanted", "")
    for check in checks:
        sign = "at most" if check.at_most else "at least"
        verdict = "met" if check.is_met else "[bold]missed[/]"
        table.add_row(check.name, f"{check.value:,.3g} {check.unit}", f"{sign} {check.limit:,g} {check.unit}", verdict)
    console = Console()
    console.print(table)
    verdict = "valid" if steps.is_valid else "not comparable: the machine or the re-enactment is off by more than half"
    console.print(f"Ours: results step with its search {steps.results_ms:.3f} ms, item step {steps.item_ms:.3f} ms")
    console.print(
        f"The original re-enacted: results step {steps.original_results_ms:.1f} ms, item step "
        f"{steps.original_item_ms:.1f} ms ({verdict})"
    )


if __name__ == "__main__":
    sys.exit(main())
