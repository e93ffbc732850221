"""The version on a token is the version that computed it: re-scoring with the archived weights gives its log-prob."""

from __future__ import annotations

import threading
from pathlib import Path

import torch

from async_agent_rl import model_files
from async_agent_rl.cluster.local import LocalCluster
from async_agent_rl.config_loading import load_config
from async_agent_rl.plugins import load_world
from async_agent_rl.protocol import Trajectory
from async_agent_rl.run_folder import create_run_folder
from async_agent_rl.weights import WeightStore
from learner.client import BufferClient
from learner.loop import distinct_tensors
from tools.bench_sides import start_rollout_side

UPDATES = 4


def _rescore(model: torch.nn.Module, trajectory: Trajectory, version: int) -> float:
    """Largest distance between the actor's log-probs and full forward passes, over the tokens of one version."""
    worst = 0.0
    for _, prompt, action, logprobs, versions in trajectory.turn_arrays():
        if not (versions == version).any():
            continue
        ids = torch.tensor([[*prompt.tolist(), *action.tolist()]])
        with torch.no_grad():
            logits = model(ids).logits[0, len(prompt) - 1 : -1]
        scored = logits.log_softmax(-1).gather(1, torch.tensor(action.tolist())[:, None])[:, 0]
        distance = (scored - torch.tensor(logprobs.tolist())).abs()
        worst = max(worst, float(distance[torch.tensor((versions == version).tolist())].max()))
    return worst


def test_tokens_carry_the_version_that_computed_them(tmp_path: Path) -> None:
    config = load_config(
        "smoke",
        [
            f"run.dir={tmp_path}",
            "group.size=4",
            "train.groups_per_update=2",
            f"train.updates={UPDATES}",
            "staleness.max=2",
            "actors.slots=12",
        ],
    )
    folder = create_run_folder(config)
    store = WeightStore(folder.weights, keep=UPDATES + 1)
    model = model_files.load_model(model_files.resolve_model_path(config.model.path))
    noise = torch.Generator().manual_seed(0)
    cluster = LocalCluster(folder.path)
    received: list[Trajectory] = []
    stop = threading.Event()
    try:
        store.publish(0, 0, distinct_tensors(model))
        addresses = start_rollout_side(cluster, folder, config, load_world(config.env).num_tasks("train"))
        with BufferClient(addresses.router, folder.path.name, "learner", config.group.size) as client:
            client.connect(stop)
            for version in range(UPDATES):
                batch = client.next_batch(version, config.train.groups_per_update, stop)
                assert batch is not None
                assert all(group.staleness(version) <= 2 for group in batch.groups)
                received += batch.trajectories
                # Weights far enough from the last ones that a wrong tag cannot pass.
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter += 0.02 * parameter.std() * torch.randn(parameter.shape, generator=noise)
                store.publish(version + 1, 0, distinct_tensors(model))
                client.report_trained(version + 1, batch.numbers)
            client.send_stop("enough")
    finally:
        cluster.end_all()

    seen = {int(version) for trajectory in received for version in trajectory.versions}
    assert len(seen) >= 2  # tokens of several versions were there to be told apart
    mixed = [trajectory for trajectory in received if trajectory.versions.min() < trajectory.versions.max()]
    for version in sorted(seen):
        model.load_state_dict(store.load(store.manifest(version)), strict=False)
        assert max(_rescore(model, trajectory, version) for trajectory in received) < 1e-4
    other = min(seen)
    model.load_state_dict(store.load(store.manifest(other)), strict=False)
    wrongly = [t for t in received if t.versions.min() > other] or mixed
    assert max(_rescore_as(model, trajectory) for trajectory in wrongly) > 1e-2  # the check can tell versions apart


def _rescore_as(model: torch.nn.Module, trajectory: Trajectory) -> float:
    return max(_rescore(model, trajectory, int(version)) for version in set(trajectory.versions.tolist()))
