"""One run: starts the roles, follows their metrics, and brings everything to an end, whatever happens.

Who waits for whom: the loop polls exits and the metrics file five times a second. A role that dies ends the run within
that time; Ctrl-C ends the learner first, so that its checkpoint is written while nothing else disturbs it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from async_agent_rl.buffer.main import wait_for_addresses
from async_agent_rl.cluster.local import LocalCluster, RoleProcess
from async_agent_rl.config import Config
from async_agent_rl.console import Console
from async_agent_rl.errors import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_OK, InputError, RunError
from async_agent_rl.metrics import UpdateRecord, format_update, read_metrics
from async_agent_rl.panels import Panel, PanelRunner
from async_agent_rl.preflight import Plan
from async_agent_rl.reports import EvaluationReport
from async_agent_rl.role_main import read_failure
from async_agent_rl.roles import RoleSpec, write_role_spec
from async_agent_rl.run_folder import RunFolder, create_run_folder
from async_agent_rl.summary import comparison_lines, draw_learning_curve

_POLL_S = 0.2
_START_DEADLINE_S = 60.0
_LEARNER_STOP_S = 6.0
_OTHERS_STOP_S = 2.0
_DRAIN_S = 10.0
_EARLY_END_GRACE_S = 5.0
_SILENCE_S = 60.0


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
        self._ended_early_s: float | None = None
        self._heard_s = time.monotonic()
        """When the last update, or the last word about there being none, was shown."""

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
            start = str(self._plan.model_path)
            reports = self._evaluate([Panel(0, start, temperature) for temperature in self._temperatures()])
            self._train()
            reports += self._evaluate(self._later_panels())
        except RunInterruptedError:
            return self._end_interrupted()
        self._summarize(reports, time.monotonic() - started)
        return EXIT_OK

    # --- roles -------------------------------------------------------------------------------------------------

    def _train(self) -> None:
        roles = self._start_roles()
        learner = roles[1]
        self._heard_s = time.monotonic()
        total = self._config.train.updates
        with self._console.progress("training", total) as bar:
            while learner.exit_code is None:
                self._check_roles()
                self._check_early_end(roles)
                self._notice_silence()
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

    def _check_early_end(self, roles: list[RoleProcess]) -> None:
        """A role that ended in peace (somebody sent it SIGTERM) while the learner still needs it is a dead role too.

        At the regular end the others may be gone a moment before the learner, hence the grace.

        Raises:
            RunError: names the role.
        """
        ended = [role for role in roles if role.exit_code == EXIT_OK and role.name != "learner"]
        if not ended:
            return
        self._ended_early_s = self._ended_early_s or time.monotonic()
        if time.monotonic() - self._ended_early_s > _EARLY_END_GRACE_S:
            raise RunError(f"{ended[0].name} ended with status 0 although the run was not over; was it told to stop?")

    def _notice_silence(self) -> None:
        """Say when no update has come for long, and where the reason stands: no wait is silent."""
        now_s = time.monotonic()
        if now_s - self._heard_s < _SILENCE_S:
            return
        self._heard_s = now_s
        self._console.say(
            f"no update for {_SILENCE_S:.0f} s; what the roles wait for: "
            f"python -m tools.tail {self._folder.path} --level warning"
        )

    def _pause(self) -> None:
        if self._interrupted.wait(_POLL_S):
            raise RunInterruptedError

    def _show_new_updates(self, reach: Callable[[int], None]) -> None:
        for record in read_metrics(self._folder.path)[len(self._records) :]:
            self._records.append(record)
            self._heard_s = time.monotonic()
            bound = self._config.effective_staleness
            self._console.say(format_update(self._records, self._config.train.updates, bound))
            reach(record.version)

    # --- evaluation --------------------------------------------------------------------------------------------

    def _temperatures(self) -> list[float]:
        evaluation = self._config.evaluation
        return sorted({evaluation.temperature, 0.0} if evaluation.greedy else {evaluation.temperature}, reverse=True)

    def _evaluate(self, panels: list[Panel]) -> list[tuple[int, EvaluationReport]]:
        """Score the panels and say what came out; (version, report) of each."""
        if self._plan.num_panel_tasks == 0 or not panels:
            return []
        names = ", ".join(sorted({f"v{panel.version}" for panel in panels}))
        self._console.say(f"evaluating {names} on {self._plan.num_panel_tasks} validation tasks ...")

        def watch() -> None:
            self._check_roles()
            self._pause()

        runner = PanelRunner(self._config, self._folder, self._cluster, self._plan.num_panel_tasks)
        reports = [(panel.version, report) for panel, report in zip(panels, runner.run(panels, watch), strict=True)]
        for version, report in reports:
            self._console.say(f"v{version:<4d} {report.line()}")
        return reports

    def _later_panels(self) -> list[Panel]:
        """The final policy in every way of decoding; the kept ones between for the curve, sampled only."""
        found = [(int(path.name[1:]), str(path)) for path in self._checkpoints()]
        version, path = found[-1]
        between = [Panel(number, folder, self._temperatures()[0]) for number, folder in found[:-1] if number > 0]
        return [*between, *(Panel(version, path, temperature) for temperature in self._temperatures())]

    # --- the end -----------------------------------------------------------------------------------------------

    def _checkpoints(self) -> list[Path]:
        """Kept checkpoints by version.

        Raises:
            RunError: the learner left none.
        """
        found = sorted(path for path in self._folder.checkpoints.glob("v*") if path.is_dir())
        if not found:
            raise RunError(f"the learner left no checkpoint in {self._folder.checkpoints}")
        return found

    def _end_interrupted(self) -> int:
        learners = [role for role in self._cluster.roles if role.name == "learner" and role.exit_code is None]
        saving = "the learner saves a checkpoint, " if learners else ""
        self._console.say(f"interrupted: {saving}everything ends ...")
        self._cluster.terminate(learners, _LEARNER_STOP_S)
        self._cluster.end_all(_OTHERS_STOP_S)
        kept = sorted(path for path in self._folder.checkpoints.glob("v*") if path.is_dir())
        self._console.say(f"kept: checkpoint {kept[-1]}" if kept else "kept: nothing was trained yet")
        return EXIT_INTERRUPTED

    def _summarize(self, reports: list[tuple[int, EvaluationReport]], seconds: float) -> None:
        draw_learning_curve(
            self._folder.learning_curve,
            f"{self._config.run.name}, {self._config.mode}, seed {self._config.run.seed}",
            self._records,
            reports,
            self._config.trajectories_per_update,
        )
        last = max((version for version, _ in reports), default=0)
        before = [report for version, report in reports if version == 0]
        after = [report for version, report in reports if version == last]
        for line in comparison_lines(before, after):
            self._console.say(line)
        self._console.say(f"model        {self._checkpoints()[-1]}")
        self._console.say(f"curve        {self._folder.learning_curve}")
        self._console.say(f"folder       {self._folder.path}  ({seconds / 60:.1f} min)")
