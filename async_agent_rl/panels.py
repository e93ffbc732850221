"""Scoring the policies of a run on the fixed validation panel, several at a time, each in a process of its own.

Knows nothing of how episodes are played: that is `actors.evaluation_main`'s business.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from async_agent_rl.cluster.local import LocalCluster, RoleProcess
from async_agent_rl.config import Config
from async_agent_rl.errors import RunError
from async_agent_rl.reports import EvaluationJob, EvaluationReport
from async_agent_rl.run_folder import RunFolder


@dataclasses.dataclass(frozen=True)
class Panel:
    """One policy and one way of decoding."""

    version: int
    model_path: str
    temperature: float


class PanelRunner:
    """Starts evaluation processes in a run's cluster and reads their reports."""

    def __init__(self, config: Config, folder: RunFolder, cluster: LocalCluster, num_tasks: int) -> None:
        self._config = config
        self._folder = folder
        self._cluster = cluster
        self._num_tasks = num_tasks

    def run(self, panels: Sequence[Panel], watch: Callable[[], None]) -> list[EvaluationReport]:
        """Score all panels, as many at once as there are cores.

        Args:
            panels: at least one task each, or nothing is scored.
            watch: called while waiting; pauses, and raises when a process failed or the run is to end.

        Returns:
            Reports in the order of `panels`; empty when the panel has no tasks.
        """
        if self._num_tasks == 0:
            return []
        cores = os.cpu_count() or 1
        threads = max(1, cores // min(cores, len(panels)))
        waiting = list(panels)
        running: list[RoleProcess] = []
        while waiting or running:
            while waiting and len(running) < max(1, cores // threads):
                running.append(self._start(waiting.pop(0), threads))
            watch()
            running = [role for role in running if role.exit_code is None]
        watch()
        return [self._read(panel) for panel in panels]

    def _start(self, panel: Panel, threads: int) -> RoleProcess:
        out = self._out(panel)
        job = EvaluationJob(
            config=self._config,
            model_path=panel.model_path,
            split="validation",
            n=self._num_tasks,
            temperature=panel.temperature,
            seed=self._config.run.seed,
            threads=threads,
            out=str(out),
            launcher_pid=os.getpid(),
        )
        job_file = out.with_suffix(".job.json")
        job_file.write_bytes(msgspec.json.encode(job))
        return self._cluster.start(f"evaluate-{out.stem}", "actors.evaluation_main", job_file, threads)

    def _read(self, panel: Panel) -> EvaluationReport:
        out = self._out(panel)
        try:
            return msgspec.json.decode(out.read_bytes(), type=EvaluationReport)
        except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
            raise RunError(
                f"the evaluation of version {panel.version} left no readable report {out}: {error}"
            ) from error

    def _out(self, panel: Panel) -> Path:
        how = "greedy" if panel.temperature == 0 else f"T{panel.temperature:g}"
        return self._folder.evaluations / f"v{panel.version:06d}-{how}.json"
