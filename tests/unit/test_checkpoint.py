"""A checkpoint is complete or absent, and what is read back goes on as if nothing had happened.

Run: python -m pytest tests/unit/test_checkpoint.py
"""

from __future__ import annotations

import errno
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from async_agent_rl.config import Config, LearnerSection
from async_agent_rl.errors import InputError, RunError
from async_agent_rl.model_files import load_model, load_tokenizer, resolve_model_path
from learner.batch import build_rows
from learner.checkpoint import CheckpointStore, TrainerState, load_trainer
from learner.update import PolicyUpdater
from tests.learner_samples import random_groups, tiny_model, tiny_tokenizer

CONFIG = Config(learner=LearnerSection(warmup_updates=0, mini_batch_rows=6, micro_batch_rows=4))


def state_of(version: int, steps: int = 0) -> TrainerState:
    return TrainerState(version=version, incarnation=0, optimizer_steps=steps)


def train(updater: PolicyUpdater, version: int) -> None:
    rows = build_rows(random_groups(version), "format", "state", "decoupled")
    assert updater.update(rows, version).status == "applied"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_training_goes_on_from_a_checkpoint_bit_for_bit(tmp_path: Path) -> None:
    straight = PolicyUpdater(tiny_model(), CONFIG)
    train(straight, 0)
    store = CheckpointStore(tmp_path, keep=3)
    folder = store.save(state_of(1, straight.optimizer_steps), straight.model, tiny_tokenizer(), straight.optimizer)
    train(straight, 1)

    resumed = PolicyUpdater(load_model(folder), CONFIG)
    state = load_trainer(folder, resumed.model, resumed.optimizer)
    resumed.optimizer_steps = state.optimizer_steps
    train(resumed, state.version)
    assert resumed.optimizer_steps == straight.optimizer_steps
    for got, expected in zip(resumed.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(got, expected)


def test_a_checkpoint_is_a_plain_hugging_face_folder(tmp_path: Path) -> None:
    updater = PolicyUpdater(tiny_model(), CONFIG)
    folder = CheckpointStore(tmp_path, keep=3).save(state_of(10), updater.model, tiny_tokenizer(), updater.optimizer)
    assert folder.name == "v000010"
    assert resolve_model_path(str(folder)) == folder
    assert load_tokenizer(folder).decode([5]) == "w5"
    assert [path.name for path in folder.glob("*.safetensors")] == ["model.safetensors"]
    rows = build_rows(random_groups(0), "format", "state", "none")
    scores = [
        PolicyUpdater(m, CONFIG).scorer.score_all(rows, np.arange(3), 4)[0] for m in (updater.model, load_model(folder))
    ]
    assert torch.equal(scores[0].nan_to_num(), scores[1].nan_to_num())


def test_the_newest_and_the_start_policy_are_kept_and_latest_points_to_the_newest(tmp_path: Path) -> None:
    updater = PolicyUpdater(tiny_model(layers=1), CONFIG)
    store = CheckpointStore(tmp_path, keep=2)
    for version in (0, 10, 20, 30):
        store.save(state_of(version), updater.model, tiny_tokenizer(), updater.optimizer)
        assert (tmp_path / "latest").resolve().name == f"v{version:06d}"
    assert names_in(tmp_path) == ["latest", "v000000", "v000020", "v000030"]
    assert store.versions() == [0, 20, 30]
    assert store.has(30)
    assert not store.has(10)


def test_a_version_may_be_saved_again(tmp_path: Path) -> None:
    updater = PolicyUpdater(tiny_model(layers=1), CONFIG)
    store = CheckpointStore(tmp_path, keep=2)
    for steps in (1, 2):
        folder = store.save(state_of(5, steps), updater.model, tiny_tokenizer(), updater.optimizer)
    assert load_trainer(folder, updater.model, updater.optimizer).optimizer_steps == 2
    assert names_in(tmp_path) == ["latest", "v000005"]


class FullDisk:
    """A tokenizer whose files no longer fit on the disk."""

    def __init__(self, number: int) -> None:
        self._number = number

    def save_pretrained(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{")
        raise OSError(
            self._number, "No space left on device" if self._number == errno.ENOSPC else "Disk quota exceeded"
        )


@pytest.mark.parametrize(("number", "cause"), [(errno.ENOSPC, "No space left"), (errno.EDQUOT, "quota exceeded")])
def test_a_full_disk_is_named_and_leaves_earlier_checkpoints_intact(tmp_path: Path, number: int, cause: str) -> None:
    updater = PolicyUpdater(tiny_model(layers=1), CONFIG)
    store = CheckpointStore(tmp_path, keep=1)
    old = store.save(state_of(10), updater.model, tiny_tokenizer(), updater.optimizer)
    before = {path.name: path.read_bytes() for path in old.iterdir() if path.is_file()}
    with pytest.raises(RunError, match=f"version 20 .*{cause}.*earlier checkpoints are intact"):
        store.save(state_of(20), updater.model, FullDisk(number), updater.optimizer)
    assert names_in(tmp_path) == ["latest", "v000010"]
    assert (tmp_path / "latest").resolve() == old
    assert {path.name: path.read_bytes() for path in old.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(("share", "cause"), [(0.5, ""), (1.5, "File too large")], ids=["weights", "optimizer"])
def test_a_write_the_system_refuses_midway_leaves_nothing_behind(tmp_path: Path, share: float, cause: str) -> None:
    """A file-size limit stands in for the full disk: real writes of weights or optimizer state fail."""
    updater: Any = PolicyUpdater(tiny_model(), CONFIG)
    train(updater, 0)
    store = CheckpointStore(tmp_path, keep=1)
    limit_bytes = int(share * 4 * sum(parameter.numel() for parameter in updater.model.parameters()))
    old_limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, old_limits[1]))
    try:
        with pytest.raises(RunError, match=f"version 1 cannot be written to .*{cause}"):
            store.save(state_of(1), updater.model, tiny_tokenizer(), updater.optimizer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old_limits)
    assert names_in(tmp_path) == []
    assert store.save(state_of(1), updater.model, tiny_tokenizer(), updater.optimizer).is_dir()


def test_missing_damaged_and_foreign_trainer_states_are_refused(tmp_path: Path) -> None:
    updater = PolicyUpdater(tiny_model(), CONFIG)
    train(updater, 0)
    folder = CheckpointStore(tmp_path, keep=1).save(state_of(1), updater.model, tiny_tokenizer(), updater.optimizer)
    other = PolicyUpdater(tiny_model(layers=1), CONFIG)
    with pytest.raises(InputError, match=r"knows model\.layers\.1.* which this model has not"):
        load_trainer(folder, other.model, other.optimizer)
    (folder / "trainer" / "state.json").write_text('{"version": 1')
    with pytest.raises(InputError, match="damaged"):
        load_trainer(folder, updater.model, updater.optimizer)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        load_trainer(tmp_path, updater.model, updater.optimizer)
