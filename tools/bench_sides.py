"""How long each side of the pipeline needs for one update when it never waits for the other.

Actors alone: real buffer and actor processes, and in the learner's place a client that answers every batch at once with
the same weights under the next version. Learner alone: the real update on the batches the actors made just now.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from async_agent_rl import model_files
from async_agent_rl.buffer.main import BufferAddresses, wait_for_addresses
from async_agent_rl.cluster.local import LocalCluster
from async_agent_rl.config import Config
from async_agent_rl.errors import RunError
from async_agent_rl.plugins import load_world
from async_agent_rl.protocol import Trajectory
from async_agent_rl.roles import RoleSpec, write_role_spec
from async_agent_rl.run_folder import WEIGHT_VERSIONS_KEPT, RunFolder, create_run_folder
from async_agent_rl.weights import WeightStore
from learner.batch import build_rows
from learner.client import BufferClient
from learner.loop import distinct_tensors
from learner.update import PolicyUpdater

_START_DEADLINE_S = 60.0


@dataclasses.dataclass(frozen=True)
class Sides:
    """Seconds per update, median over the counted updates."""

    actor_s: float
    learner_s: float


def measure_sides(config: Config, warm_up: int) -> Sides:
    """Measure both, one after the other.

    Args:
        config: of the asynchronous run; its staleness bound, concurrency and run.dir are kept.
        warm_up: updates left out.
    """
    torch.set_num_threads(config.learner.threads or os.cpu_count() or 1)
    path = model_files.resolve_model_path(config.model.path)
    actor_s, batches = _actors_alone(config, path)
    learner_s = _learner_alone(config, path, batches)
    return Sides(actor_s=statistics.median(actor_s[warm_up:]), learner_s=statistics.median(learner_s[1:]))


def _actors_alone(config: Config, model_path: Path) -> tuple[list[float], list[list[Trajectory]]]:
    """Seconds between batches, and the batches."""
    folder = create_run_folder(config)
    num_tasks = load_world(config.env).num_tasks("train")
    cluster = LocalCluster(folder.path)
    try:
        addresses = start_rollout_side(cluster, folder, config, num_tasks)
        return _play_learner(cluster, folder, config, model_path, addresses)
    finally:
        cluster.end_all()


def start_rollout_side(cluster: LocalCluster, folder: RunFolder, config: Config, num_tasks: int) -> BufferAddresses:
    """Start a buffer and the actors of a run, without learner or launcher; the caller ends the cluster."""

    def spec(name: str, router: str, hints: str) -> Path:
        return write_role_spec(
            RoleSpec(
                name=name,
                run_id=folder.path.name,
                run_dir=str(folder.path),
                incarnation=0,
                config=config,
                num_train_tasks=num_tasks,
                buffer_address=router,
                hint_address=hints,
                launcher_pid=os.getpid(),
            )
        )

    buffer = cluster.start("buffer", "async_agent_rl.buffer.main", spec("buffer", "", ""), 1)
    addresses = wait_for_addresses(folder.path, _START_DEADLINE_S, lambda: buffer.exit_code is None)
    for number in range(config.actors.num):
        name = f"actor-{number}"
        role_file = spec(name, addresses.router, addresses.hints)
        cluster.start(name, "actors.main", role_file, config.actors.threads)
    return addresses


def _play_learner(
    cluster: LocalCluster, folder: RunFolder, config: Config, model_path: Path, addresses: BufferAddresses
) -> tuple[list[float], list[list[Trajectory]]]:
    weights = WeightStore(folder.weights, WEIGHT_VERSIONS_KEPT)
    tensors = distinct_tensors(model_files.load_model(model_path, config.model.dtype))
    weights.publish(0, 0, tensors)
    seconds, batches, stop = [], [], threading.Event()
    with BufferClient(addresses.router, folder.path.name, "learner", config.group.size) as client:
        client.connect(stop)
        before = time.monotonic()
        for version in range(config.train.updates):
            batch = client.next_batch(version, config.train.groups_per_update, stop)
            if batch is None or cluster.failed() is not None:
                raise RunError("the actors ended before the measurement; see the logs of the run")
            weights.publish(version + 1, 0, tensors)
            client.report_trained(version + 1, batch.numbers)
            now = time.monotonic()
            seconds.append(now - before)
            before = now
            batches.append(batch.trajectories)
        client.send_stop("measured")
    return seconds, batches


def _learner_alone(config: Config, model_path: Path, batches: Sequence[Sequence[Trajectory]]) -> list[float]:
    """Seconds of each update, publishing left out (a few milliseconds)."""
    updater = PolicyUpdater(model_files.load_model(model_path, config.model.dtype), config)
    seconds = []
    for version, trajectories in enumerate(batches):
        started = time.monotonic()
        rows = build_rows(trajectories, config.learner.penalize, config.gigpo.anchor, config.offpolicy.correction)
        updater.update(rows, version)
        seconds.append(time.monotonic() - started)
    return seconds
