"""The data set's own randomness: one number per (what it is for, which product or record), whatever the order.

Prices and price ceilings are part of the data, not of a run: they hang on `DATASET_SEED` and on names only, so that
the same files give the same goals in every process. Knows nothing of run seeds.
"""

from __future__ import annotations

import hashlib

DATASET_SEED = 233


def unit_draw(*names: str | int) -> float:
    """A float64 in [0, 1), a pure function of the names.

    Each name is hashed with its length, so that ("ab", "c") and ("a", "bc") are different draws.
    """
    digest = hashlib.blake2b(digest_size=8)
    for name in (DATASET_SEED, *names):
        data = str(name).encode()
        digest.update(len(data).to_bytes(4, "little") + data)
    return (int.from_bytes(digest.digest(), "little") >> 11) / (1 << 53)
