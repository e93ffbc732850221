"""Whole runs with real processes: they train, they end as they should, and they leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from transformers import AutoModelForCausalLM

from async_agent_rl.metrics import UpdateRecord, read_metrics

SMALL = ["--config-name", "smoke", "evaluation.n=0", "group.size=2", "train.groups_per_update=2", "actors.slots=8"]


class Launched:
    """One launcher in the background, its run folder below `runs`."""

    def __init__(self, root: Path, runs: Path, *arguments: str) -> None:
        self._runs = runs
        self.process = subprocess.Popen(
            [sys.executable, "-m", "async_agent_rl.launch", f"run.dir={runs}", *arguments],
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def folder(self) -> Path:
        return next(iter(self._runs.glob("*")))

    def records(self) -> list[UpdateRecord]:
        return read_metrics(self.folder) if any(self._runs.glob("*")) else []

    def roles(self) -> list[psutil.Process]:
        """Every process this launcher has started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def role(self, name: str) -> psutil.Process:
        return next(child for child in self.roles() if child.cmdline()[-1].endswith(f"{name}.json"))

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 90.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, "the run did not get there in time"
            time.sleep(0.1)

    def finish(self, timeout_s: float) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err


@pytest.fixture
def start(project_root: Path, tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    started: list[Launched] = []

    def begin(*arguments: str) -> Launched:
        started.append(Launched(project_root, tmp_path / "runs", *arguments))
        return started[-1]

    yield begin
    for run in started:
        if run.process.poll() is None:
            run.process.kill()
            run.process.communicate()


def _all_gone(processes: list[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    return psutil.wait_procs(processes, timeout=timeout_s)[1]


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_the_smoke_run_trains_and_reports(mode: str, start: Callable[..., Launched]) -> None:
    run = start("--config-name", "smoke", f"mode={mode}", "evaluation.n=8", "run.seed=1")
    code, out, err = run.finish(240)
    assert code == 0, out + err
    records = run.records()
    assert [record.version for record in records] == [1, 2, 3]
    bound = 0 if mode == "sync" else 2
    assert all(record.staleness_max <= bound for record in records)
    assert all(record.rows > 0 and record.rows_generated_per_s > 0 for record in records)
    assert "paired 95 % interval" in out
    assert (run.folder / "learning_curve.png").stat().st_size > 10_000
    assert (run.folder / "checkpoints" / "v000003" / "model.safetensors").is_file()
    assert (run.folder / "config.yaml").is_file()
    episodes = [json.loads(line) for line in (run.folder / "episodes.jsonl").read_text().splitlines()]
    assert {episode["version"] for episode in episodes} == {1, 2, 3}
    assert len(episodes) % 4 == 0  # whole groups
    assert sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file()) < 100e6


def test_ctrl_c_ends_everything_and_keeps_a_checkpoint(start: Callable[..., Launched]) -> None:
    run = start(*SMALL, "train.updates=1000")
    run.wait_until(lambda: len(run.records()) >= 1)
    roles = run.roles()
    assert len(roles) >= 3
    began = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    code, out, err = run.finish(30)
    assert code == 130, out + err
    assert time.monotonic() - began < 10
    assert _all_gone(roles, 1) == []
    newest = sorted((run.folder / "checkpoints").glob("v*"))[-1]
    assert newest.name >= "v000001"
    assert (newest / "model.safetensors").is_file()
    assert (newest / "tokenizer.json").is_file()


@pytest.mark.parametrize("victim", ["actor-0", "buffer", "learner"])
def test_a_killed_role_ends_the_run_with_its_name(victim: str, start: Callable[..., Launched]) -> None:
    run = start(*SMALL, "train.updates=1000")
    run.wait_until(lambda: len(run.records()) >= 1)
    roles = run.roles()
    began = time.monotonic()
    run.role(victim).kill()
    code, out, err = run.finish(30)
    assert code == 1, out + err
    assert time.monotonic() - began < 10
    assert victim in err
    assert "SIGKILL" in err
    assert _all_gone(roles, 1) == []


def test_a_role_told_to_stop_ends_the_run_too(start: Callable[..., Launched]) -> None:
    run = start(*SMALL, "train.updates=1000")
    run.wait_until(lambda: len(run.records()) >= 1)
    roles = run.roles()
    began = time.monotonic()
    run.role("actor-0").terminate()
    code, out, err = run.finish(30)
    assert code == 1, out + err
    assert time.monotonic() - began < 10
    assert "actor-0" in err
    assert _all_gone(roles, 1) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB; mounting one takes root."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_ends_the_run_with_its_cause_and_spares_the_checkpoint(
    small_disk: Path, project_root: Path
) -> None:
    command = [sys.executable, "-m", "async_agent_rl.launch", *SMALL, "train.updates=200", f"run.dir={small_disk}"]
    result = subprocess.run(command, cwd=project_root, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "No space left on device" in result.stderr
    (folder,) = small_disk.iterdir()
    kept = sorted((folder / "checkpoints").glob("v*"))
    assert kept
    AutoModelForCausalLM.from_pretrained(kept[-1], local_files_only=True)  # whole and readable
    assert not list((folder / "checkpoints").glob("*tmp*"))


def test_no_role_outlives_a_killed_launcher(start: Callable[..., Launched]) -> None:
    run = start(*SMALL, "train.updates=1000")
    run.wait_until(lambda: len(run.records()) >= 1)
    roles = run.roles()
    run.role("actor-0").suspend()  # not even one that cannot run
    os.kill(run.process.pid, signal.SIGKILL)
    run.finish(10)
    assert _all_gone(roles, 10) == []
