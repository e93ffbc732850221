"""The figures of one update: one JSON line in <run_dir>/metrics.jsonl, and the line a person reads.

Knows nothing of how they are measured. Written by the learner, read by the launcher and the tools.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec


class UpdateRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one update consumed, taught and cost. Means are over the update's trajectories unless said otherwise."""

    version: int
    """Of the weights this update produced."""
    time_s: float
    """Seconds since the learner served its first version."""
    success: float
    score: float
    """Mean task score."""
    reward: float
    """Mean sum of training rewards, penalties left out."""
    episode_length: float
    staleness_mean: float
    """Over the update's groups."""
    staleness_max: int
    groups_ready: int
    groups_in_flight: int
    groups_dropped: dict[str, int] = {}
    """DropReason -> groups since the start."""
    rows: int
    """Steps in the update's trajectories."""
    rows_trained: int
    """Rows that went through an optimizer step (zero advantages left out, if so configured)."""
    trajectories_per_s: float
    """Trajectories of this update over its wall clock."""
    rows_generated_per_s: float
    """All actors, over the last few seconds, in which there may be several updates."""
    tokens_generated: int
    """All actors, since the start."""
    rows_trained_per_s: float
    """Rows of this update over the learner's computing time."""
    learner_wait_s: float
    """Seconds the learner waited for this update's groups."""
    learner_busy_s: float
    actor_lease_wait_s: float
    """Seconds the actors' engines stood idle for want of a lease since the last update, mean over actors."""
    actor_env_wait_s: float
    """Seconds the engines stood idle because every live episode was in its environment, mean over actors."""
    actor_busy_s: float
    admission_blocked_s: float
    """Of the lease wait: seconds in which the staleness bound alone refused a lease."""
    format_ok: float
    """Share of rows."""
    admissible: float
    """Share of rows."""
    prompts_shortened: float
    """Share of rows whose history was shortened, or whose prompt was cut, to fit the token budget."""
    responses_cut: float
    """Share of rows that ran into the token limit."""
    loss: float
    policy_loss: float
    kl: float
    """Mean KL to the reference policy; 0 when it is not computed."""
    entropy: float
    """Mean per token, nats, over the rows that were scored; 0 when there were none."""
    clip_fraction: float
    grad_norm: float
    effective_sample_size: float
    """Of the off-policy weights, in (0, 1]."""
    logprob_mismatch: float
    """Mean |pi_prox - pi_b| per token, nats."""
    learning_rate: float
    optimizer_steps: int
    """Since the start."""


def metrics_path(run_dir: str | Path) -> Path:
    return Path(run_dir) / "metrics.jsonl"


def read_metrics(run_dir: str | Path) -> list[UpdateRecord]:
    """All complete lines of a run; a last line cut short by a kill is left out."""
    return list(_complete_records(metrics_path(run_dir)))


def _complete_records(path: Path) -> Iterator[UpdateRecord]:
    if not path.exists():
        return
    for line in path.read_bytes().split(b"\n")[:-1]:
        yield msgspec.json.decode(line, type=UpdateRecord)


def format_update(recent: Sequence[UpdateRecord], updates: int, staleness_max: int) -> str:
    """One readable line for the newest update.

    Args:
        recent: the last updates, newest last, at least one.
        updates: how many the run will do.
        staleness_max: the bound in force; the line says so when a larger one would buy nothing.
    """
    record = recent[-1]
    width = len(str(updates))
    line = (
        f"v{record.version:0{width}d}/{updates}  success {record.success:6.1%}  score {record.score:.2f}  "
        f"reward {record.reward:5.2f}  len {record.episode_length:4.1f}  "
        f"stale {record.staleness_mean:.1f}/{staleness_max}  "
        f"queue {record.groups_ready:2d} ready {record.groups_in_flight:2d} live  "
        f"gen {record.rows_generated_per_s:4.0f} rows/s  train {record.rows_trained_per_s:4.0f} rows/s  "
        f"waited: learner {record.learner_wait_s:.1f}s, actors {record.actor_lease_wait_s:.1f}s for leases "
        f"{record.actor_env_wait_s:.1f}s for envs"
    )
    if is_learner_bound(recent[-BOUND_WINDOW:], staleness_max):
        line += "  [actors outrun the learner: a larger staleness.max buys nothing]"
    return line


BOUND_WINDOW = 5
"""Updates over which the two waits are compared."""


def is_learner_bound(recent: Sequence[UpdateRecord], staleness_max: int) -> bool:
    """Over these updates the actors stood waiting for the bound while the learner hardly waited for them."""
    busy_s = sum(record.learner_busy_s for record in recent)
    waited_s = sum(record.learner_wait_s for record in recent)
    blocked_s = sum(record.admission_blocked_s for record in recent)
    return staleness_max > 0 and blocked_s > 0.1 * (busy_s + waited_s) and waited_s < 0.05 * busy_s
