"""The rates of an update are those of the last seconds, so short updates do not read 0 or everything."""

from __future__ import annotations

import dataclasses

from async_agent_rl.protocol import ActorStats, BufferStats
from learner.intake import ReceivedBatch
from learner.measurement import Measurement


@dataclasses.dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


def batch(rows: int, tokens: int) -> ReceivedBatch:
    stats = BufferStats(
        groups_ready=0,
        groups_in_flight=0,
        groups_issued=0,
        groups_dropped={},
        leases_failed={},
        duplicates=0,
        admission_blocked_s=0.0,
        actors={"actor-0": ActorStats(rows=rows, generated_tokens=tokens)},
    )
    return ReceivedBatch(groups=[], stats=stats)


def arrive(measurement: Measurement, clock: Clock, seconds: float, rows: int, tokens: int) -> float:
    clock.now_s += seconds
    measurement.batch_arrived(batch(rows, tokens))
    return measurement._rows_per_s


def test_an_update_between_two_readings_keeps_the_rate() -> None:
    clock = Clock()
    measurement = Measurement(clock)
    measurement.start()
    assert arrive(measurement, clock, 2.0, 200, 2000) == 100.0
    assert arrive(measurement, clock, 0.5, 200, 2000) == 200 / 2.5  # nothing new was counted yet


def test_old_readings_leave_the_window() -> None:
    clock = Clock()
    measurement = Measurement(clock)
    measurement.start()
    arrive(measurement, clock, 4.0, 1000, 0)
    arrive(measurement, clock, 4.0, 1400, 0)
    assert arrive(measurement, clock, 4.0, 1600, 0) == 50.0


def test_an_actor_that_starts_anew_counts_from_zero() -> None:
    clock = Clock()
    measurement = Measurement(clock)
    measurement.start()
    arrive(measurement, clock, 1.0, 100, 10)
    assert arrive(measurement, clock, 1.0, 50, 5) == 75.0  # 100 before, 50 since
