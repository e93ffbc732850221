"""The learner's loop against a scripted buffer: versions, staleness, broken updates, stopping.

Run: python -m pytest tests/unit/test_learner_loop.py
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
import torch

from async_agent_rl.config import (
    CheckpointSection,
    Config,
    GroupSection,
    LearnerSection,
    StalenessSection,
    TrainSection,
)
from async_agent_rl.errors import DropReason, RunError
from async_agent_rl.metrics import read_metrics
from async_agent_rl.protocol import AnyMessage, BatchRequest, Dropped, Frame, Stop, Trained, Trajectory
from async_agent_rl.roles import RoleSpec
from async_agent_rl.weights import WeightStore
from learner.batch import build_rows
from learner.checkpoint import CheckpointStore
from learner.client import BufferClient, Patience
from learner.episodes import EpisodeLog, episodes_path, read_episodes
from learner.intake import Group
from learner.loop import TrainingLoop, distinct_tensors
from learner.update import PolicyUpdater
from tests.learner_samples import random_groups, tiny_model, tiny_tokenizer
from tests.scripted_buffer import ScriptedBuffer, batch_frames

SIZE, GROUPS = 3, 2
Supply = Callable[[BatchRequest, int], Sequence[Trajectory]]


def config_of(updates: int, staleness: int = 1) -> Config:
    return Config(
        group=GroupSection(size=SIZE),
        train=TrainSection(groups_per_update=GROUPS, updates=updates),
        staleness=StalenessSection(max=staleness),
        learner=LearnerSection(mini_batch_rows=8, micro_batch_rows=4, warmup_updates=0),
        checkpoint=CheckpointSection(every=2, keep=2),
    )


def fresh_groups(request: BatchRequest, number: int) -> list[Trajectory]:
    """The next two groups, sampled by the version that consumes them."""
    made = random_groups(number, num_groups=GROUPS * (number + 1), size=SIZE, version=request.version)
    return made[-GROUPS * SIZE :]


class Scene:
    """One run of the loop against a buffer that answers each request with what `supply` gives."""

    def __init__(self, run_dir: Path, config: Config, supply: Supply, stop: threading.Event | None = None) -> None:
        self.run_dir = run_dir
        self.model = tiny_model(layers=1)
        self._config = config
        self._supply = supply
        self._stop = stop or threading.Event()
        self._requests = 0
        self.buffer = ScriptedBuffer(self._answer)

    def _answer(self, message: AnyMessage) -> Sequence[Sequence[Frame]]:
        if not isinstance(message, BatchRequest):
            return []
        self._requests += 1
        return [batch_frames(self._supply(message, self._requests - 1), SIZE, message.version)]

    def play(self) -> None:
        with self.buffer:
            client = BufferClient(self.buffer.address, "run", "learner", SIZE, Patience(silence_s=5.0))
            spec = RoleSpec(
                name="learner",
                run_id="run",
                run_dir=str(self.run_dir),
                incarnation=0,
                config=self._config,
                num_train_tasks=10,
                buffer_address=self.buffer.address,
            )
            with client:
                TrainingLoop(spec, self.model, tiny_tokenizer(), client, self._stop).run()

    @property
    def versions(self) -> list[int]:
        return CheckpointStore(self.run_dir / "checkpoints", 1).versions()


def test_a_run_publishes_each_version_and_leaves_its_records(tmp_path: Path) -> None:
    scene = Scene(tmp_path, config_of(updates=5), fresh_groups)
    scene.play()
    trained = scene.buffer.received_of(Trained)
    assert trained == [Trained(version=v + 1, groups=[2 * v, 2 * v + 1]) for v in range(5)]
    assert scene.buffer.received[-1] == Stop(reason="all updates are done")
    assert scene.versions == [0, 4, 5]

    store = WeightStore(tmp_path / "weights", keep=8)
    assert [store.manifest(version).version for version in range(6)] == list(range(6))
    latest = store.latest()
    assert latest is not None
    published = store.load(latest)
    assert published.keys() == distinct_tensors(scene.model).keys()
    assert all(
        torch.equal(published[name], value) for name, value in scene.model.state_dict().items() if name in published
    )
    assert "lm_head.weight" not in published  # tied: its one tensor goes by the embedding's name

    records = read_metrics(tmp_path)
    assert [record.version for record in records] == [1, 2, 3, 4, 5]
    assert all(record.staleness_max == 0 and record.rows > 0 and record.entropy > 0 for record in records)
    assert records[-1].optimizer_steps >= 5


def test_episodes_hold_one_whole_group_per_update_with_what_it_was_taught(tmp_path: Path) -> None:
    Scene(tmp_path, config_of(updates=2), fresh_groups).play()
    lines = read_episodes(episodes_path(tmp_path))
    assert [(line.version, line.group, line.member) for line in lines] == [
        (1, 0, 0),
        (1, 0, 1),
        (1, 0, 2),
        (2, 2, 0),
        (2, 2, 1),
        (2, 2, 2),
    ]
    turns = [turn for line in lines[:3] for turn in line.turns]
    assert all(turn.prompt and turn.response.startswith("w") for turn in turns)
    scores = [sum(turn.reward for turn in line.turns) - 0.1 * (line.member == 1) for line in lines[:3]]
    mean = sum(scores) / 3
    for line, score in zip(lines[:3], scores, strict=True):
        assert line.turns[0].episode_advantage == pytest.approx(score - mean, abs=1e-5)
    assert {turn.versions for turn in turns} == {(0, 0)}


def test_groups_older_than_the_bound_are_dropped_and_others_asked_for(tmp_path: Path) -> None:
    """At version 2 with a bound of 1, the first answer holds a group sampled at version 0."""

    def supply(request: BatchRequest, number: int) -> list[Trajectory]:
        good = random_groups(number, num_groups=GROUPS * (number + 1), size=SIZE, version=request.version)
        if request.version == 2 and number == 2:
            old = random_groups(number, num_groups=GROUPS * (number + 1), size=SIZE, version=0)
            return [*old[-2 * SIZE : -SIZE], *good[-SIZE:]]
        return good[-GROUPS * SIZE :]

    scene = Scene(tmp_path, config_of(updates=3, staleness=1), supply)
    scene.play()
    assert scene.buffer.received_of(Dropped) == [Dropped(groups=[4], reason=DropReason.TOO_STALE)]
    assert scene.buffer.received_of(Trained)[-1] == Trained(version=3, groups=[6, 7])
    assert max(record.staleness_max for record in read_metrics(tmp_path)) <= 1


def with_infinite_reward(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    first, *rest = trajectories
    turns = [msgspec.structs.replace(turn, reward=float("inf")) for turn in first.header.turns]
    return [dataclasses.replace(first, header=msgspec.structs.replace(first.header, turns=turns)), *rest]


def test_a_batch_that_breaks_the_update_is_dropped_and_training_goes_on(tmp_path: Path) -> None:
    def supply(request: BatchRequest, number: int) -> list[Trajectory]:
        groups = fresh_groups(request, number)
        return with_infinite_reward(groups) if number == 1 else groups

    scene = Scene(tmp_path, config_of(updates=2), supply)
    scene.play()
    assert scene.buffer.received_of(Dropped) == [Dropped(groups=[2, 3], reason=DropReason.NON_FINITE_UPDATE)]
    assert scene.buffer.received_of(Trained) == [Trained(version=1, groups=[0, 1]), Trained(version=2, groups=[4, 5])]
    assert all(torch.isfinite(parameter).all() for parameter in scene.model.parameters())


def test_three_broken_updates_in_a_row_end_the_run(tmp_path: Path) -> None:
    scene = Scene(tmp_path, config_of(updates=9), lambda request, n: with_infinite_reward(fresh_groups(request, n)))
    with pytest.raises(RunError, match=r"3 updates in a row at version 0 .* learner\.learning_rate=0\.0005"):
        scene.play()
    assert scene.versions == [0]


def test_a_stop_leaves_a_checkpoint_of_the_last_whole_version(tmp_path: Path) -> None:
    stop = threading.Event()

    def supply(request: BatchRequest, number: int) -> list[Trajectory]:
        if request.version == 3:
            stop.set()
        return fresh_groups(request, number)

    scene = Scene(tmp_path, config_of(updates=9), supply, stop)
    scene.play()
    assert scene.buffer.received[-1] == Stop(reason="the learner ended at version 3")
    assert scene.versions == [0, 2, 3]
    assert [record.version for record in read_metrics(tmp_path)] == [1, 2, 3]


def test_a_full_disk_under_the_metrics_ends_the_run_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    scene = Scene(tmp_path, config_of(updates=2), fresh_groups)
    with pytest.raises(RunError, match=r"metrics\.jsonl cannot be written: No space left"):
        scene.play()
    assert scene.versions == [0]


def test_episode_files_rotate_and_stay_bounded(tmp_path: Path) -> None:
    trajectories = random_groups(1, num_groups=1, size=SIZE)
    updater = PolicyUpdater(tiny_model(layers=1), config_of(updates=1))
    rows = build_rows(trajectories, "format", "state", "decoupled")
    advantages = updater.update(rows, 0).advantages
    log = EpisodeLog(tmp_path, tiny_tokenizer(), file_bytes=9_000, num_files=2)
    for version in range(1, 30):
        log.write_group(version, Group(0, trajectories), 0, advantages)
    files = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert files.keys() == {"episodes.jsonl", "episodes.1.jsonl"}
    assert all(size <= 9_000 for size in files.values())
    newest, older = (read_episodes(tmp_path / name) for name in ("episodes.jsonl", "episodes.1.jsonl"))
    assert newest[-1].version == 29
    assert older[-1].version + 1 == newest[0].version
