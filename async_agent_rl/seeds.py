"""Randomness by counter: every stream is a pure function of the run seed and where it is used.

No generator is shared, so no schedule can change what a (group, member, step) draws (design, invariant 9).
"""

from __future__ import annotations

import enum
import hashlib

import numpy as np


class Purpose(enum.IntEnum):
    """One stream family per use; the numbers are part of what makes runs repeatable, so never reuse one."""

    TASK_ORDER = 1
    SAMPLING = 2
    ENVIRONMENT = 3
    MINIBATCH = 4
    EVALUATION = 5
    MODEL_INIT = 6
    LATENCY = 7
    DEMONSTRATION = 8
    CATALOG = 9


def derive_seed(run_seed: int, purpose: Purpose, *counters: int) -> int:
    """A 64-bit seed for one place of use.

    Args:
        run_seed: `run.seed` of the configuration.
        purpose: what the numbers are for.
        counters: where they are used, e.g. (group, member, step); any ints.
    """
    text = ":".join(str(value) for value in (run_seed, int(purpose), *counters))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def generator(run_seed: int, purpose: Purpose, *counters: int) -> np.random.Generator:
    """A NumPy generator of its own for one place of use (Philox, seeded by `derive_seed`)."""
    return np.random.Generator(np.random.Philox(key=derive_seed(run_seed, purpose, *counters)))
