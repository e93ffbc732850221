"""`python -m tools.bench_throughput`: sync against async on the same workload, in one go.

Every figure comes from the real pipeline: the launcher, its processes and sockets, the policy and the environment with
an injected latency. Sync is run with each thread count and its best one is the baseline. The bound is
max(t_actor, t_learner): how long the slower side needs for one update when it never waits for the other.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from async_agent_rl.config import Config
from async_agent_rl.config_loading import DEFAULT_CONFIG, load_config
from async_agent_rl.errors import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_OK, EXIT_RUN_FAILED, InputError, RunError
from async_agent_rl.metrics import UpdateRecord, read_metrics
from tools.bench_sides import measure_sides


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One way of running, warm-up left out. Medians over the repeats."""

    name: str
    threads: int
    """torch threads of learner and actors."""
    trajectories_per_s: float
    tokens_per_s: float
    """Generated tokens."""
    seconds_per_update: float
    learner_waits: float
    """Share of the wall clock."""
    actors_wait_for_leases: float
    actors_wait_for_environments: float
    staleness_mean: float
    repeats: list[float]
    """Trajectories/s of each repeat."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` writes."""

    cores: int
    latency: str
    updates: int
    warm_up: int
    staleness_max: int
    runs: list[Measured]
    ratio: float
    """async over the best sync, trajectories/s."""
    actor_alone_s: float
    """t_actor: seconds to play one update's groups with a learner that costs nothing."""
    learner_alone_s: float
    """t_learner: seconds to train one update on groups that are already there."""
    bound_ratio: float
    """The ratio to the best sync at which async would reach max(t_actor, t_learner)."""
    share_of_bound: float
    """async's speed over the bound's."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way of running the workload."""

    name: str
    mode: str
    threads: int

    def overrides(self) -> list[str]:
        return [f"mode={self.mode}", f"actors.threads={self.threads}", f"learner.threads={self.threads}"]


def variants(cores: int) -> list[Variant]:
    """async with one thread a role; sync, whose roles take turns, with one thread and with all."""
    found = [Variant("async", "async", 1), Variant("sync, 1 thread", "sync", 1)]
    if cores > 1:
        found.append(Variant(f"sync, {cores} threads", "sync", cores))
    return found


def run_once(variant: Variant, common: Sequence[str], runs: Path) -> list[UpdateRecord]:
    """Launch one run below `runs`, its run.dir, and return its updates.

    Raises:
        RunError: the run failed; carries its last lines.
    """
    command = [sys.executable, "-m", "async_agent_rl.launch", *common, *variant.overrides()]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == EXIT_BAD_INPUT:
        raise InputError(result.stderr.strip())
    if result.returncode != EXIT_OK:
        raise RunError(f"{variant.name} ended with status {result.returncode}: {result.stderr.strip()[-500:]}")
    return read_metrics(max(runs.iterdir(), key=lambda path: path.stat().st_mtime))


def measure(variant: Variant, repeats: Sequence[Sequence[UpdateRecord]], warm_up: int, trajectories: int) -> Measured:
    """Medians over repeats; the first `warm_up` updates of each are left out."""
    rates, tokens, learner, lease, environment, ages = [], [], [], [], [], []
    for records in repeats:
        first, last = records[warm_up - 1], records[-1]
        counted = records[warm_up:]
        wall = last.time_s - first.time_s
        rates.append(trajectories * len(counted) / wall)
        tokens.append((last.tokens_generated - first.tokens_generated) / wall)
        learner.append(sum(record.learner_wait_s for record in counted) / wall)
        lease.append(sum(record.actor_lease_wait_s for record in counted) / wall)
        environment.append(sum(record.actor_env_wait_s for record in counted) / wall)
        ages.append(statistics.fmean(record.staleness_mean for record in counted))
    rate = statistics.median(rates)
    return Measured(
        name=variant.name,
        threads=variant.threads,
        trajectories_per_s=rate,
        tokens_per_s=statistics.median(tokens),
        seconds_per_update=trajectories / rate,
        learner_waits=statistics.median(learner),
        actors_wait_for_leases=statistics.median(lease),
        actors_wait_for_environments=statistics.median(environment),
        staleness_mean=statistics.median(ages),
        repeats=rates,
    )


def bench(config: Config, common: Sequence[str], repeats: int, warm_up: int) -> Report:
    """Run everything, interleaved A B C A B C, so that a slow minute of the machine hits all alike."""
    cores = os.cpu_count() or 1
    runs = Path(config.run.dir)
    ways = variants(cores)
    records: dict[str, list[list[UpdateRecord]]] = {way.name: [] for way in ways}
    for repeat in range(repeats):
        for way in ways:
            print(f"run {repeat + 1}/{repeats}: {way.name} ...", flush=True)
            records[way.name].append(run_once(way, [*common, f"run.seed={config.run.seed + repeat}"], runs))
    measured = [measure(way, records[way.name], warm_up, config.trajectories_per_update) for way in ways]
    print("each side alone ...", flush=True)
    sides = measure_sides(config, warm_up)
    asynchronous, best_sync = measured[0], max(measured[1:], key=lambda item: item.trajectories_per_s)
    bound_s = max(sides.actor_s, sides.learner_s)
    return Report(
        cores=cores,
        latency=config.env.latency,
        updates=config.train.updates,
        warm_up=warm_up,
        staleness_max=config.staleness.max,
        runs=measured,
        ratio=asynchronous.trajectories_per_s / best_sync.trajectories_per_s,
        actor_alone_s=sides.actor_s,
        learner_alone_s=sides.learner_s,
        bound_ratio=best_sync.seconds_per_update / bound_s,
        share_of_bound=bound_s / asynchronous.seconds_per_update,
    )


def table(report: Report) -> list[str]:
    """The report for people."""
    lines = [
        f"{report.cores} cores, environment latency {report.latency}, staleness.max={report.staleness_max}, "
        f"{report.updates - report.warm_up} updates after {report.warm_up} of warm-up",
        "",
        f"{'':16s} {'traj/s':>7s} {'tokens/s':>9s} {'s/update':>9s}   waiting: {'learner':>8s} {'actors: lease':>14s} "
        f"{'environment':>12s}   staleness",
    ]
    lines += [
        f"{run.name:16s} {run.trajectories_per_s:7.2f} {run.tokens_per_s:9.0f} {run.seconds_per_update:9.2f}   "
        f"         {run.learner_waits:8.0%} {run.actors_wait_for_leases:14.0%} {run.actors_wait_for_environments:12.0%}"
        f"   {run.staleness_mean:9.2f}"
        for run in report.runs
    ]
    return [
        *lines,
        "",
        f"async / best sync  {report.ratio:.2f}x",
        f"each side alone    actors {report.actor_alone_s:.2f} s, learner {report.learner_alone_s:.2f} s an update",
        f"bound              {report.bound_ratio:.2f}x: async cannot be faster than the slower side alone",
        f"reached            {report.share_of_bound:.0%} of the bound",
        *_verdict(report),
    ]


def _verdict(report: Report) -> list[str]:
    if report.ratio >= 1.1:
        return []
    return [
        "Overlap gains little here: the sides compute on the same cores, so one works at the cost of the other. It "
        "gains where actors wait (slow environments, other machines)."
    ]


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.bench_throughput", description="Sync against async.")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for async_agent_rl.launch")
    parser.add_argument("--config-name", default=DEFAULT_CONFIG, metavar="NAME")
    parser.add_argument("--latency", default="lognormal:0.15,1.0", help="env.latency (default: lognormal:0.15,1.0)")
    parser.add_argument("--updates", type=int, default=14, help="of each run, warm-up included (default: 14)")
    parser.add_argument("--warm-up", type=int, default=4, help="updates left out of the figures (default: 4)")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the report there")
    return parser.parse_intermixed_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    settings = [
        *arguments.overrides,
        f"env.latency={arguments.latency}",
        f"train.updates={arguments.updates}",
        "evaluation.n=0",
    ]
    try:
        if not 1 <= arguments.warm_up < arguments.updates:
            raise InputError(
                f"--warm-up {arguments.warm_up}: must be at least 1 and below --updates {arguments.updates}"
            )
        if arguments.repeats < 1:
            raise InputError(f"--repeats {arguments.repeats}: must be at least 1")
        with tempfile.TemporaryDirectory() as folder:
            settings.append(f"run.dir={folder}")
            config = load_config(arguments.config_name, settings)
            common = ["--config-name", arguments.config_name, *settings]
            report = bench(config, common, arguments.repeats, arguments.warm_up)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_BAD_INPUT
    except RunError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_RUN_FAILED
    print("\n".join(table(report)))
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
