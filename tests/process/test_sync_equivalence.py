"""Sync, async without staleness, and a plain loop without any pipeline give the same parameters, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from async_agent_rl.config import Config
from async_agent_rl.config_loading import load_config
from async_agent_rl.plugins import load_world
from async_agent_rl.weights import WeightStore
from learner.loop import distinct_tensors
from tests.plain_loop import train_plainly

SETTINGS = [
    "run.deterministic=true",
    "run.seed=5",
    "evaluation.n=0",
    "group.size=4",
    "train.groups_per_update=3",
    "train.updates=3",
    "actors.slots=12",
    "learner.mini_batch_rows=32",
    "learner.micro_batch_rows=16",
]


def _run(root: Path, runs: Path, *mode: str) -> dict[str, torch.Tensor]:
    """The final weights of a run with real processes."""
    command = [sys.executable, "-m", "async_agent_rl.launch", "--config-name", "smoke", f"run.dir={runs}"]
    result = subprocess.run(
        [*command, *SETTINGS, *mode], cwd=root, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    store = WeightStore(next(runs.iterdir()) / "weights", keep=8)
    latest = store.latest()
    assert latest is not None
    assert latest.version == 3
    return store.load(latest)


@pytest.fixture(scope="module")
def plain() -> tuple[Config, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Configuration, start parameters and final parameters of the plain loop."""
    config = load_config("smoke", [*SETTINGS, "mode=sync"])
    world = load_world(config.env)
    result = train_plainly(config, world)
    from async_agent_rl.model_files import load_model, resolve_model_path

    start = distinct_tensors(load_model(resolve_model_path(config.model.path)))
    return config, start, distinct_tensors(result.model)


@pytest.mark.parametrize("mode", [("mode=sync",), ("mode=async", "staleness.max=0")])
def test_the_pipeline_gives_the_parameters_of_the_plain_loop(
    mode: tuple[str, ...],
    plain: tuple[Config, dict[str, torch.Tensor], dict[str, torch.Tensor]],
    project_root: Path,
    tmp_path: Path,
) -> None:
    _, start, expected = plain
    got = _run(project_root, tmp_path, *mode)
    assert got.keys() == expected.keys()
    moved = [name for name in expected if not torch.equal(start[name], expected[name])]
    assert len(moved) > len(expected) // 2  # training did something
    different = [name for name in expected if not torch.equal(got[name], expected[name])]
    assert different == []
