"""<run_dir>/episodes.jsonl: what the agent saw, wrote and was taught, one line an episode, whole groups.

The files rotate, so that they stay bounded. Knows nothing of how episodes are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from torch import Tensor

from async_agent_rl.errors import RunError
from async_agent_rl.protocol import Trajectory
from learner.advantages import Advantages
from learner.batch import Rows
from learner.intake import Group


class EpisodeTurn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One environment step."""

    prompt: str
    response: str
    action: str
    state_key: str
    reward: float
    """Without penalty."""
    discounted_return: float
    """As it was compared with rows of the same state; penalty included."""
    episode_advantage: float
    step_advantage: float
    """Not yet weighted by gigpo.step_weight."""
    versions: tuple[int, int]
    """Oldest and newest weights that sampled its tokens."""
    format_ok: bool
    is_admissible: bool
    response_cut: bool


class EpisodeLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One trajectory, as trained in the update that made `version`."""

    version: int
    group: int
    member: int
    task_index: int
    actor: str
    world_id: str
    """Which data was played, e.g. the hash of WebShop's catalogue."""
    won: bool
    score: float
    truncated: bool
    turns: list[EpisodeTurn]


def episodes_path(run_dir: str | Path) -> Path:
    return Path(run_dir) / "episodes.jsonl"


class EpisodeLog:
    """Appends lines; when a file is full it becomes episodes.1.jsonl, the older ones move up, the last one goes."""

    def __init__(self, run_dir: str | Path, tokenizer: Any, file_bytes: int, num_files: int) -> None:
        """
        Args:
            run_dir: of the run.
            tokenizer: transformers tokenizer, for reading tokens back as text.
            file_bytes: a file is closed before it would exceed this, unless a single group does.
            num_files: kept in all, at least 1.
        """
        self._path = episodes_path(run_dir)
        self._tokenizer = tokenizer
        self._file_bytes = file_bytes
        self._num_files = num_files

    def write_group(self, version: int, group: Group, first_row: int, advantages: Advantages) -> None:
        """Append the group's episodes.

        Args:
            version: of the weights the update made.
            group: one of the update's groups.
            first_row: where its rows begin in `advantages`.
            advantages: of all rows of the update.

        Raises:
            RunError: the file cannot be written.
        """
        lines = bytearray()
        row = first_row
        for trajectory in group.trajectories:
            end = row + len(trajectory.header.turns)
            lines += msgspec.json.encode(self._line(version, trajectory, slice(row, end), advantages)) + b"\n"
            row = end
        try:
            if self._path.exists() and self._path.stat().st_size + len(lines) > self._file_bytes:
                self._rotate()
            with self._path.open("ab") as file:
                file.write(lines)
        except OSError as error:
            raise RunError(f"{self._path} cannot be written: {error.strerror}") from error

    def _line(self, version: int, trajectory: Trajectory, rows: slice, advantages: Advantages) -> EpisodeLine:
        header = trajectory.header
        columns = (_floats(advantages.returns[rows]), _floats(advantages.episode[rows]), _floats(advantages.step[rows]))
        turns = [
            EpisodeTurn(
                prompt=self._tokenizer.decode(prompt),
                response=self._tokenizer.decode(action),
                action=turn.action,
                state_key=turn.state_key,
                reward=turn.reward,
                discounted_return=returned,
                episode_advantage=episode,
                step_advantage=step,
                versions=(int(versions.min()), int(versions.max())),
                format_ok=turn.format_ok,
                is_admissible=turn.is_admissible,
                response_cut=turn.response_cut,
            )
            for (turn, prompt, action, _, versions), returned, episode, step in zip(
                trajectory.turn_arrays(), *columns, strict=True
            )
        ]
        return EpisodeLine(
            version=version,
            group=header.group,
            member=header.member,
            task_index=header.task_index,
            actor=header.actor,
            world_id=header.world_id,
            won=header.won,
            score=header.score,
            truncated=header.truncated,
            turns=turns,
        )

    def _rotate(self) -> None:
        names = [self._path, *(self._path.with_suffix(f".{n}.jsonl") for n in range(1, self._num_files))]
        names[-1].unlink(missing_ok=True)
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            if newer.exists():
                newer.rename(older)


def first_row_of(rows: Rows, group: int) -> int:
    """Index of the group's first row; rows of a group are contiguous."""
    return int(np.argmax(rows.groups == group))


def read_episodes(path: Path) -> Sequence[EpisodeLine]:
    """All lines of one file."""
    return [msgspec.json.decode(line, type=EpisodeLine) for line in path.read_bytes().splitlines()]


def _floats(values: Tensor) -> list[float]:
    return [round(value, 6) for value in values.tolist()]
