"""What an evaluation found, and the intervals that go with it.

Knows nothing of how episodes are played.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from async_agent_rl.config import Config
from async_agent_rl.env import Split

_Z95 = 1.959963984540054


class EvaluationJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the evaluation process is asked to do: one JSON file, its only argument."""

    config: Config
    model_path: str
    split: Split
    n: int
    temperature: float
    """0 = greedy."""
    seed: int
    threads: int
    out: str
    """Where the EvaluationReport goes, as JSON."""
    launcher_pid: int = 0


class EvaluationReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Score of one model on the first n tasks of a split, each played once."""

    model: str
    split: Split
    n: int
    temperature: float
    seed: int
    success: float
    success_low: float
    """Wilson 95 % interval."""
    success_high: float
    score: float
    """Mean task score in [0, 1]."""
    episode_length: float
    format_ok: float
    """Share of steps."""
    admissible: float
    """Share of steps."""
    actions: dict[str, int]
    """Kind (the word before `[`) -> count."""
    wins: list[bool]
    """[n] by task index: two reports on the same panel can be compared in pairs."""
    seconds: float

    @property
    def decoding(self) -> str:
        return "greedy" if self.temperature == 0 else f"T={self.temperature:g}"

    def line(self) -> str:
        return (
            f"{self.decoding:7s} success {self.success:6.1%} [{self.success_low:.1%}, {self.success_high:.1%}]  "
            f"n={self.n}  score {self.score:.3f}  length {self.episode_length:.1f}  valid format {self.format_ok:.1%}  "
            f"admissible {self.admissible:.1%}"
        )


def wilson_interval(wins: int, n: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927, score interval); (0, 1) when n is 0."""
    if n == 0:
        return 0.0, 1.0
    share = wins / n
    centre = (share + _Z95**2 / (2 * n)) / (1 + _Z95**2 / n)
    half = _Z95 / (1 + _Z95**2 / n) * math.sqrt(share * (1 - share) / n + _Z95**2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def paired_gain(before: Sequence[bool], after: Sequence[bool]) -> tuple[float, float, float]:
    """Mean gain on the same tasks and its 95 % interval (normal, of the per-task differences).

    Raises:
        ValueError: different numbers of tasks, or fewer than two.
    """
    if len(before) != len(after) or len(before) < 2:
        raise ValueError(f"need the same two or more tasks twice, got {len(before)} and {len(after)}")
    gains = [int(late) - int(early) for early, late in zip(before, after, strict=True)]
    n = len(gains)
    mean = sum(gains) / n
    variance = sum((gain - mean) ** 2 for gain in gains) / (n - 1)
    half = _Z95 * math.sqrt(variance / n)
    return mean, max(-1.0, mean - half), min(1.0, mean + half)
