"""Waiting time added to environment steps, for benchmarks. Knows nothing of environments."""

from __future__ import annotations

import math

from async_agent_rl import seeds
from async_agent_rl.config import Latency
from async_agent_rl.seeds import Purpose


def draw_latency_s(latency: Latency, episode_seed: int, step: int) -> float:
    """Seconds to wait at one step; a function of its arguments, so that every schedule meets the same waits.

    Args:
        latency: from `parse_latency`.
        episode_seed: of the lease.
        step: of the episode, 0-based.
    """
    match latency.kind:
        case "none":
            return 0.0
        case "fixed":
            return latency.median_s
        case "lognormal":
            noise = float(seeds.generator(episode_seed, Purpose.LATENCY, step).standard_normal())
            return latency.median_s * math.exp(latency.sigma * noise)
