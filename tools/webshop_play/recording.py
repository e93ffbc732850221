"""Reads recorded groups (`episodes.jsonl`) for a replay.

Knows nothing of how they are shown.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from async_agent_rl.errors import InputError
from learner.episodes import EpisodeLine, EpisodeTurn, episodes_path

_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedGroup:
    """The trajectories of one task that were compared with each other."""

    version: int
    """Of the weights whose update trained the group."""
    group: int
    episodes: tuple[EpisodeLine, ...]
    """By member."""

    @property
    def num_won(self) -> int:
        return sum(episode.won for episode in self.episodes)


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    """Everything one file, or all episode files of a run folder, hold; oldest first."""

    path: Path
    groups: tuple[RecordedGroup, ...]
    config: Path | None
    """The run's resolved configuration, where it lies beside the file."""

    def position_of(self, group: int | None) -> int:
        """Index of a group by its number, the last recorded one for None.

        Raises:
            InputError: it is not in the recording.
        """
        if group is None:
            return len(self.groups) - 1
        for position, candidate in enumerate(self.groups):
            if candidate.group == group:
                return position
        known = ", ".join(str(candidate.group) for candidate in self.groups[-10:])
        raise InputError(f"--group {group}: {self.path} does not hold it; its last groups are {known}")


def read_recording(text: str) -> Recording:
    """Read an episodes file or a run folder (then with the files that rotation has put aside).

    Raises:
        InputError: nothing to read, or a line that is no episode.
    """
    path = Path(text).expanduser()
    files = [path]
    if path.is_dir():
        newest = episodes_path(path)
        aside = [file for file in path.glob("episodes.*.jsonl") if file.suffixes[0][1:].isdigit()]
        aside.sort(key=lambda file: -int(file.suffixes[0][1:]))
        files = [file for file in (*aside, newest) if file.is_file()]
        if not files:
            raise InputError(
                f"--replay {text}: there is no {newest.name} in this folder; give a run folder or its file"
            )
    lines = list(itertools.chain.from_iterable(map(_lines, files)))
    groups = [
        RecordedGroup(version, group, tuple(sorted(members, key=lambda line: line.member)))
        for (version, group), members in itertools.groupby(lines, key=lambda line: (line.version, line.group))
    ]
    if not groups:
        raise InputError(f"--replay {text}: no episode is recorded there yet")
    config = files[-1].parent / "config.yaml"
    return Recording(path, tuple(groups), config if config.is_file() else None)


def _lines(path: Path) -> Iterator[EpisodeLine]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"--replay {path}: cannot be read: {error.strerror}") from error
    # What follows the last line end is still being written.
    complete, _, _ = content.rpartition(b"\n")
    for number, line in enumerate(complete.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            episode = msgspec.json.decode(line, type=EpisodeLine)
        except msgspec.MsgspecError as error:  # ValidationError and DecodeError
            raise InputError(f"--replay {path}, line {number}: no recorded episode: {error}") from None
        except UnicodeDecodeError:
            raise InputError(f"--replay {path}, line {number}: no recorded episode: not UTF-8") from None
        if not episode.turns:
            raise InputError(f"--replay {path}, line {number}: an episode without a step")
        yield episode


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
    """A response taken apart; None where a part is missing."""

    thought: str | None
    action: str | None
    raw: str


def take_apart(turn: EpisodeTurn) -> Response:
    """The first thought and the last action of a response."""
    thought = _THOUGHT.search(turn.response)
    actions = _ACTION.findall(turn.response)
    return Response(thought[1].strip() if thought else None, actions[-1].strip() if actions else None, turn.response)


def signed(value: float) -> str:
    """With its sign and two decimals; a true minus, and no sign for what rounds to nothing."""
    text = f"{value:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text.replace("-", "−")


def versions_text(turn: EpisodeTurn) -> str:
    """Which weights wrote the response."""
    oldest, newest = turn.versions
    return f"{oldest}" if oldest == newest else f"{oldest} to {newest}"


def flags_text(turn: EpisodeTurn) -> str:
    """What was wrong with a response, or `ok`."""
    wrong = [
        *([] if turn.format_ok else ["wrong form"]),
        *([] if turn.is_admissible else ["not admissible"]),
        *(["cut off"] if turn.response_cut else []),
    ]
    return ", ".join(wrong) or "ok"


def outcome_text(episode: EpisodeLine) -> str:
    """How an episode ended."""
    ended = "won" if episode.won else "cut off at the step limit" if episode.truncated else "not won"
    return f"{ended}, score {episode.score:.2f}"
