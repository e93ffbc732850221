"""One run: starts the roles, follows their metrics, and brings everything to an end, whatever happens.

Who waits for whom: the loop polls exits and the metrics file five times a second. A role that dies ends the run within
that time; Ctrl-C ends the learner first, so that its checkpoint is written while nothing else disturbs it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from async_agent_rl.buffer.main import wait_for_addresses
from async_agent_rl.cluster.local import LocalCluster, RoleProcess
from async_agent_rl.config import Config
from async_agent_rl.console import Console
from async_agent_rl.errors import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_OK, InputError, RunError
from async_agent_rl.metrics import UpdateRecord, format_update, read_metrics
from async_agent_rl.preflight import Plan
from async_agent_rl.reports import EvaluationJob, EvaluationReport
from async_agent_rl.role_main import read_failure
from async_agent_rl.roles import RoleSpec, write_role_spec
from async_agent_rl.run_folder import RunFolder, create_run_folder
from async_agent_rl.summary import comparison_lines, draw_learning_curve

_POLL_S = 0.2
_START_DEADLINE_S = 60.0
_LEARNER_STOP_S = 6.0
_OTHERS_STOP_S = 2.0
_DRAIN_S = 10.0


class RunInterruptedError(Exception):
    """Ctrl-C or SIGTERM reached the launcher."""


class TrainingRun:
    """Context manager: whatever way the block is left, no process of the run is alive afterwards."""

    def __init__(self, config: Config, plan: Plan, console: Console, interrupted: threading.Event) -> None:
        self._config = config
        self._plan = plan
        self._console = console
        self._interrupted = interrupted
        self._folder: RunFolder = create_run_folder(config)
        self._cluster = LocalCluster(self._folder.path)
        self._records: list[UpdateRecord] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.end_all()

    def execute(self) -> int:
        """The whole run; its exit status."""
        self._console.say(f"run folder   {self._folder.path}")
        started = time.monotonic()
        try:
            before = self._evaluate("before", str(self._plan.model_path))
            self._train()
            after = self._evaluate("after", str(self._latest_checkpoint()))
        except RunInterruptedError:
            return self._end_interrupted()
        self._summarize(before, after, time.monotonic() - started)
        return EXIT_OK

    # --- roles -------------------------------------------------------------------------------------------------

    def _train(self) -> None:
        roles = self._start_roles()
        learner = roles[1]
        total = self._config.train.updates
        with self._console.progress("training", total) as bar:
            while learner.exit_code is None:
                self._check_roles()
                self._show_new_updates(bar.reach)
                self._pause()
            self._check_roles()
            self._show_new_updates(bar.reach)
        # The learner has told the buffer to stop, and the buffer the actors.
        if not self._cluster.wait(roles, _DRAIN_S):
            still = [role.name for role in roles if role.exit_code is None]
            self._console.say(f"note: {', '.join(still)} did not end by itself and is ended now")
        self._cluster.terminate(roles, _OTHERS_STOP_S)

    def _start_roles(self) -> list[RoleProcess]:
        config = self._config
        buffer = self._start("buffer", "async_agent_rl.buffer.main", 1, ("", ""))

        def is_alive() -> bool:
            self._check_roles()  # raises with the cause the buffer left
            return buffer.exit_code is None

        addresses = wait_for_addresses(self._folder.path, _START_DEADLINE_S, is_alive)
        pair = (addresses.router, addresses.hints)
        learner = self._start("learner", "learner.main", config.learner.threads, pair)
        actors = [
            self._start(f"actor-{i}", "actors.main", config.actors.threads, pair) for i in range(config.actors.num)
        ]
        return [buffer, learner, *actors]

    def _start(self, name: str, module: str, threads: int, addresses: tuple[str, str]) -> RoleProcess:
        spec = RoleSpec(
            name=name,
            run_id=self._folder.path.name,
            run_dir=str(self._folder.path),
            incarnation=0,
            config=self._config,
            num_train_tasks=self._plan.num_train_tasks,
            buffer_address=addresses[0],
            hint_address=addresses[1],
            launcher_pid=os.getpid(),
        )
        return self._cluster.start(name, module, write_role_spec(spec), threads)

    def _check_roles(self) -> None:
        """Raises InputError or RunError with the cause when a role has died."""
        failed = self._cluster.failed()
        if failed is None:
            return
        cause = read_failure(self._folder.path, failed.name)
        text = cause.message if cause else (failed.stderr_tail().splitlines() or ["it left no message"])[-1]
        where = f"details in {self._folder.path / 'logs'}"
        if failed.exit_code == EXIT_BAD_INPUT:
            raise InputError(text)
        raise RunError(f"{failed.name} {failed.describe_end()}: {text}; {where}")

    def _pause(self) -> None:
        if self._interrupted.wait(_POLL_S):
            raise RunInterruptedError

    def _show_new_updates(self, reach: Callable[[int], None]) -> None:
        for record in read_metrics(self._folder.path)[len(self._records) :]:
            self._records.append(record)
            bound = self._config.effective_staleness
            self._console.say(format_update(self._records, self._config.train.updates, bound))
            reach(record.version)

    # --- evaluation --------------------------------------------------------------------------------------------

    def _evaluate(self, when: str, model_path: str) -> list[EvaluationReport]:
        """Score one model folder on the validation panel, sampled and greedy at the same time."""
        if self._plan.num_panel_tasks == 0:
            return []
        evaluation = self._config.evaluation
        temperatures = sorted({evaluation.temperature, 0.0} if evaluation.greedy else {evaluation.temperature})
        threads = max(1, (os.cpu_count() or 1) // len(temperatures))
        roles, outs = [], []
        for temperature in temperatures:
            name = f"evaluate-{when}-{'greedy' if temperature == 0 else f'T{temperature:g}'}"
            out = self._folder.evaluations / f"{name}.json"
            job = EvaluationJob(
                config=self._config,
                model_path=model_path,
                split="validation",
                n=self._plan.num_panel_tasks,
                temperature=temperature,
                seed=self._config.run.seed,
                threads=threads,
                out=str(out),
                launcher_pid=os.getpid(),
            )
            job_file = self._folder.evaluations / f"{name}.job.json"
            job_file.write_bytes(msgspec.json.encode(job))
            roles.append(self._cluster.start(name, "actors.evaluation_main", job_file, threads))
            outs.append(out)
        self._console.say(f"evaluating {when} training: {self._plan.num_panel_tasks} validation tasks ...")
        while any(role.exit_code is None for role in roles):
            self._check_roles()
            self._pause()
        self._check_roles()
        reports = [msgspec.json.decode(out.read_bytes(), type=EvaluationReport) for out in outs]
        for report in reports:
            self._console.say(f"{when:7s} {report.line()}")
        return reports

    # --- the end -----------------------------------------------------------------------------------------------

    def _latest_checkpoint(self) -> str:
        found = sorted(path for path in self._folder.checkpoints.glob("v*") if path.is_dir())
        if not found:
            raise RunError(f"the learner left no checkpoint in {self._folder.checkpoints}")
        return str(found[-1])

    def _end_interrupted(self) -> int:
        self._console.say("interrupted: the learner saves a checkpoint, everything ends ...")
        learners = [role for role in self._cluster.roles if role.name == "learner"]
        self._cluster.terminate(learners, _LEARNER_STOP_S)
        self._cluster.end_all(_OTHERS_STOP_S)
        checkpoints = sorted(path.name for path in self._folder.checkpoints.glob("v*") if path.is_dir())
        kept = f"checkpoint {self._folder.checkpoints / checkpoints[-1]}" if checkpoints else "no checkpoint yet"
        self._console.say(f"kept: {kept}")
        return EXIT_INTERRUPTED

    def _summarize(self, before: list[EvaluationReport], after: list[EvaluationReport], seconds: float) -> None:
        version = self._records[-1].version if self._records else 0
        panels = [(0, report) for report in before] + [(version, report) for report in after]
        draw_learning_curve(
            self._folder.learning_curve,
            f"{self._config.run.name}, {self._config.mode}, seed {self._config.run.seed}",
            self._records,
            panels,
            self._config.trajectories_per_update,
        )
        for line in comparison_lines(before, after):
            self._console.say(line)
        self._console.say(f"model        {self._latest_checkpoint()}")
        self._console.say(f"curve        {self._folder.learning_curve}")
        self._console.say(f"folder       {self._folder.path}  ({seconds / 60:.1f} min)")
