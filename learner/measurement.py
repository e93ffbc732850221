"""The figures of each update: what the buffer and the actors counted, as differences since the update before.

Knows nothing of files; `UpdateRecord` says what each figure means.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from async_agent_rl.metrics import UpdateRecord
from async_agent_rl.protocol import ActorStats
from learner.batch import Rows
from learner.intake import ReceivedBatch
from learner.update import UpdateStats


class Measurement:
    """Told when a batch arrives and when its update is done."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            clock: seconds, monotonic.
        """
        self._clock = clock
        self._started_s = clock()
        self._free_since_s = self._started_s
        """When the learner last had nothing to do but wait."""
        self._counted_s = self._started_s
        """When the actors' counters were last read."""
        self._waited_s = 0.0
        self._actors: dict[str, ActorStats] = {}
        self._interval = _ActorInterval()
        self._blocked_s = 0.0
        self._newly_blocked_s = 0.0

    def start(self) -> None:
        """The first version is served."""
        self._started_s = self._free_since_s = self._counted_s = self._clock()

    def batch_arrived(self, batch: ReceivedBatch) -> None:
        """The batch that will be trained on is here."""
        now_s = self._clock()
        self._waited_s = now_s - self._free_since_s
        self._interval = _ActorInterval.between(self._actors, batch.stats.actors, now_s - self._counted_s)
        self._actors = dict(batch.stats.actors)
        self._counted_s = now_s
        self._newly_blocked_s = max(0.0, batch.stats.admission_blocked_s - self._blocked_s)
        self._blocked_s = batch.stats.admission_blocked_s

    def record(
        self, *, version: int, batch: ReceivedBatch, rows: Rows, stats: UpdateStats, busy_s: float, optimizer_steps: int
    ) -> UpdateRecord:
        """Figures of the update that made `version`, `busy_s` seconds of computing after its batch arrived."""
        self._free_since_s = self._clock()
        trajectories = batch.trajectories
        headers = [trajectory.header for trajectory in trajectories]
        turns = [turn for header in headers for turn in header.turns]
        ages = [group.staleness(version - 1) for group in batch.groups]
        return UpdateRecord(
            version=version,
            time_s=self._free_since_s - self._started_s,
            success=_mean([float(header.won) for header in headers]),
            score=_mean([header.score for header in headers]),
            reward=_mean([trajectory.reward for trajectory in trajectories]),
            episode_length=_mean([float(len(header.turns)) for header in headers]),
            staleness_mean=_mean([float(age) for age in ages]),
            staleness_max=max(ages),
            groups_ready=batch.stats.groups_ready,
            groups_in_flight=batch.stats.groups_in_flight,
            groups_dropped=batch.stats.groups_dropped,
            rows=rows.num_rows,
            rows_trained=stats.rows_trained,
            trajectories_per_s=len(headers) / max(1e-9, self._waited_s + busy_s),
            rows_generated_per_s=self._interval.rows_per_s,
            tokens_generated_per_s=self._interval.tokens_per_s,
            rows_trained_per_s=rows.num_rows / max(1e-9, busy_s),
            learner_wait_s=self._waited_s,
            learner_busy_s=busy_s,
            actor_lease_wait_s=self._interval.lease_wait_s,
            actor_env_wait_s=self._interval.env_wait_s,
            actor_busy_s=self._interval.busy_s,
            admission_blocked_s=self._newly_blocked_s,
            format_ok=_mean([float(turn.format_ok) for turn in turns]),
            admissible=_mean([float(turn.is_admissible) for turn in turns]),
            prompts_shortened=_mean([float(turn.history_dropped > 0 or turn.prompt_cut) for turn in turns]),
            responses_cut=_mean([float(turn.response_cut) for turn in turns]),
            loss=stats.loss,
            policy_loss=stats.policy_loss,
            kl=stats.kl,
            entropy=stats.entropy,
            clip_fraction=stats.clip_fraction,
            grad_norm=stats.grad_norm,
            effective_sample_size=stats.effective_sample_size,
            logprob_mismatch=stats.mismatch_mean,
            learning_rate=stats.learning_rate,
            optimizer_steps=optimizer_steps,
        )


class _ActorInterval:
    """What all actors did between two readings of their counters."""

    def __init__(self) -> None:
        self.rows_per_s = 0.0
        self.tokens_per_s = 0.0
        self.busy_s = 0.0
        self.lease_wait_s = 0.0
        self.env_wait_s = 0.0

    @classmethod
    def between(
        cls, before: Mapping[str, ActorStats], after: Mapping[str, ActorStats], seconds: float
    ) -> _ActorInterval:
        """Rates are sums over actors, seconds are means. An actor that restarted counts from its new start."""

        def grown(name: str, counter: str) -> float:
            now = float(getattr(after[name], counter))
            then = float(getattr(before.get(name, ActorStats()), counter))
            return now - then if now >= then else now

        interval = cls()
        names = list(after)
        interval.rows_per_s = sum(grown(name, "rows") for name in names) / max(1e-9, seconds)
        interval.tokens_per_s = sum(grown(name, "generated_tokens") for name in names) / max(1e-9, seconds)
        interval.busy_s = _mean([grown(name, "busy_s") for name in names])
        interval.lease_wait_s = _mean([grown(name, "lease_wait_s") for name in names])
        interval.env_wait_s = _mean([grown(name, "env_wait_s") for name in names])
        return interval


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
