"""What a person sees of a run: plain lines, and on a terminal a progress bar below them.

Knows nothing of processes or files; everything else goes to the logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import rich.console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from async_agent_rl.config import Config
from async_agent_rl.run_folder import resolved_yaml


class Console:
    """Lines to stdout, complaints to stderr."""

    def __init__(self) -> None:
        self._out = rich.console.Console(highlight=False, soft_wrap=True)
        self._err = rich.console.Console(stderr=True, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        self._out.print(escape(text))

    def error(self, text: str) -> None:
        self._err.print(f"[bold red]error:[/] {escape(text)}")

    def config(self, config: Config) -> None:
        self._heading("configuration")
        self.say(resolved_yaml(config).decode().rstrip())

    def plan(self, lines: Sequence[str]) -> None:
        self._heading("plan")
        for line in lines:
            self.say(line)

    def _heading(self, text: str) -> None:
        self._out.print(f"[bold]{text}[/]")

    def progress(self, description: str, total: int) -> ProgressBar:
        """A bar on a terminal; nothing elsewhere, so that logs stay readable."""
        return ProgressBar(self._out, description, total)


class ProgressBar:
    """Context manager around one bar."""

    def __init__(self, console: rich.console.Console, description: str, total: int) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID = self._bar.add_task(description, total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def reach(self, completed: int) -> None:
        self._bar.update(self._task, completed=completed)
