"""`python -m tools.tail RUN`: the logs of all roles of a run, merged in time order, live.

Reads <run>/logs/*.jsonl as `async_agent_rl.runlog` writes them, through their rotations.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec
import rich.console
from rich.text import Text

from async_agent_rl.errors import EXIT_BAD_INPUT, EXIT_OK, InputError

_POLL_S = 0.25
_HOLD_BACK_S = 0.6
"""Lines wait this long, so that a slower writer's earlier line still comes first."""
_LEVELS = ("debug", "info", "warning", "error", "critical")
_LEVEL_STYLES = {"debug": "dim", "info": "green", "warning": "yellow", "error": "bold red", "critical": "bold red"}
_ROLE_STYLES = ("cyan", "magenta", "blue", "bright_green", "bright_yellow", "bright_magenta")


@dataclasses.dataclass(frozen=True)
class LogLine:
    """One event of one role."""

    time_s: float
    role: str
    level: str
    event: str
    fields: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Filter:
    """Which lines to show; an empty set shows all."""

    roles: frozenset[str] = frozenset()
    level: str = "debug"
    events: frozenset[str] = frozenset()
    groups: frozenset[int] = frozenset()

    def accepts(self, line: LogLine) -> bool:
        return (
            (not self.roles or any(line.role.startswith(role) for role in self.roles))
            and _LEVELS.index(line.level) >= _LEVELS.index(self.level)
            and (not self.events or any(name in line.event for name in self.events))
            and (not self.groups or bool(self.groups & _groups_of(line)))
        )


def _groups_of(line: LogLine) -> set[int]:
    """The groups an event speaks of: a `group` field, or a list in `groups`."""
    several = line.fields.get("groups")
    found = {value for value in (several if isinstance(several, list) else []) if isinstance(value, int)}
    if isinstance(line.fields.get("group"), int):
        found.add(line.fields["group"])
    return found


def parse_line(raw: bytes) -> LogLine | None:
    """None for a line that is not one of ours, such as one cut short by a kill."""
    try:
        fields = msgspec.json.decode(raw, type=dict[str, Any])
        level = str(fields.pop("level", "info"))
        level = level if level in _LEVELS else "info"
        return LogLine(float(fields.pop("t")), str(fields.pop("role")), level, str(fields.pop("event")), fields)
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, ValueError, TypeError):
        return None


class FollowedFile:
    """One rotating file, read to its end again and again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: IO[bytes] | None = None
        self._rest = b""

    def new_lines(self) -> Iterator[LogLine]:
        """Everything written since the last call; a rotated file is read to its end before the new one is opened."""
        yield from self._read()
        if self._was_rotated():
            yield from self._read()
            self.close()
            yield from self._read()

    def _read(self) -> Iterator[LogLine]:
        if self._handle is None:
            try:
                self._handle = self._path.open("rb")
            except FileNotFoundError:
                return
        *lines, self._rest = (self._rest + self._handle.read()).split(b"\n")
        yield from filter(None, map(parse_line, lines))

    def _was_rotated(self) -> bool:
        if self._handle is None:
            return False
        try:
            return os.fstat(self._handle.fileno()).st_ino != self._path.stat().st_ino
        except FileNotFoundError:
            return False  # between rename and reopen: look again at the next poll

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()
        self._handle, self._rest = None, b""


def stored_lines(run: Path) -> Iterator[LogLine]:
    """All lines of the files that rotation has put aside (`buffer.jsonl.2`, `.1`), oldest first a role."""
    for path in sorted((run / "logs").glob("*.jsonl.*"), key=lambda path: -int(path.suffix[1:] or 0)):
        yield from filter(None, map(parse_line, path.read_bytes().split(b"\n")))


def follow(run: Path, *, live: bool) -> Iterator[LogLine]:
    """Lines of all roles in time order; endless when `live`, new roles and files are picked up."""
    files: dict[Path, FollowedFile] = {}
    waiting: list[tuple[float, int, LogLine]] = []
    for count, line in enumerate(stored_lines(run)):
        heapq.heappush(waiting, (line.time_s, -1_000_000 + count, line))
    serial = 0
    while True:
        for path in sorted((run / "logs").glob("*.jsonl")):
            for line in files.setdefault(path, FollowedFile(path)).new_lines():
                serial += 1
                heapq.heappush(waiting, (line.time_s, serial, line))
        horizon = time.time() - _HOLD_BACK_S if live else float("inf")
        while waiting and waiting[0][0] <= horizon:
            yield heapq.heappop(waiting)[2]
        if not live:
            return
        time.sleep(_POLL_S)


def render(line: LogLine, roles: dict[str, str]) -> Text:
    """One coloured line: time, role, level, event, then its fields."""
    style = roles.setdefault(line.role, _ROLE_STYLES[len(roles) % len(_ROLE_STYLES)])
    clock = time.strftime("%H:%M:%S", time.localtime(line.time_s)) + f".{int(line.time_s % 1 * 1000):03d}"
    text = Text.assemble(
        (clock, "dim"), " ", (f"{line.role:9s}", style), " ", (f"{line.level:7s}", _LEVEL_STYLES[line.level]), " "
    )
    text.append(line.event, "bold")
    for key, value in line.fields.items():
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        if "\n" in shown:
            text.append("\n" + shown.rstrip(), "red")
        else:
            text.append(f"  {key}=", "dim").append(shown)
    return text


def find_run(text: str) -> Path:
    """The run folder; for a folder of runs, its newest.

    Raises:
        InputError: there is none.
    """
    path = Path(text)
    if (path / "logs").is_dir():
        return path
    runs = sorted(child for child in path.glob("*") if (child / "logs").is_dir()) if path.is_dir() else []
    if not runs:
        raise InputError(f"{text}: no run folder (one with a logs/ folder in it), and none below it")
    return runs[-1]


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.tail", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("run", nargs="?", default="runs", help="run folder, or a folder of runs (default: runs)")
    parser.add_argument("--role", action="append", default=[], help="only this role (a prefix: actor shows all actors)")
    parser.add_argument("--level", default="debug", choices=_LEVELS, help="this level and above")
    parser.add_argument("--event", action="append", default=[], help="only events whose name contains this")
    parser.add_argument("--group", action="append", type=int, default=[], help="only events of this group")
    parser.add_argument("--no-follow", action="store_true", help="print what is there and end")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    console = rich.console.Console(highlight=False, soft_wrap=True)
    chosen = Filter(frozenset(arguments.role), arguments.level, frozenset(arguments.event), frozenset(arguments.group))
    roles: dict[str, str] = {}
    try:
        run = find_run(arguments.run)
        for line in follow(run, live=not arguments.no_follow):
            if chosen.accepts(line):
                console.print(render(line, roles))
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_BAD_INPUT
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
