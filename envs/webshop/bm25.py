"""BM25 as Lucene computes it: in single precision, and with document lengths squeezed into one byte.

score(document) = sum over the query's terms of weight - weight / (1 + tf / norm), with weight = repetitions * idf and
norm = k1 * (1 - b + b * length / mean length). Knows nothing of terms, postings or products.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

K1 = np.float32(0.9)
B = np.float32(0.4)
"""Anserini's choice of k1 and b, which WebShop's index uses; Lucene's own defaults are 1.2 and 0.75."""

_EXACT_BELOW = 24
_ONE = np.float32(1)
Floats = npt.NDArray[np.float32]


def inverse_frequency(num_documents: int, num_with_term: int) -> float:
    """BM25's weight of a term, Lucene's form: never negative. Empty documents do not count."""
    return math.log(1 + (num_documents - num_with_term + 0.5) / (num_with_term + 0.5))


def length_code(length: int) -> int:
    """The byte in which Lucene keeps a document length in terms: four leading bits above 24."""
    above = length - _EXACT_BELOW
    shift = max(above.bit_length() - 4, 0) if above > 0 else 0
    if not shift:
        return length
    return _EXACT_BELOW + (((shift + 1) << 3) | ((above >> shift) & 7))


def lossy_length(length: int) -> int:
    """What is left of a document length in terms: exact up to 40, then coarser and coarser."""
    return _decoded(length_code(length))


def inverse_norms(mean_length: float) -> Floats:
    """[256] float32: 1 / norm for each length code, given the exact mean length in terms."""
    return _ONE / (K1 * ((_ONE - B) + B * _lengths() / np.float32(mean_length)))


def contributions(weight: np.float32, counts: Floats, inverse: Floats) -> Floats:
    """[D] float32: what a term adds to the scores of documents that hold it.

    Args:
        weight: the term's repetitions in the query times its inverse frequency.
        counts: [D] float32 occurrences in each document.
        inverse: [D] float32 `inverse_norms` of each document's length.
    """
    # The subtraction is Lucene's form of weight * tf / (tf + norm); it rounds differently, which decides ties.
    return weight - weight / (_ONE + counts * inverse)


@functools.cache
def _lengths() -> Floats:
    return np.array([_decoded(code) for code in range(256)], dtype=np.float32)


def _decoded(code: int) -> int:
    if code < _EXACT_BELOW:
        return code
    bits, shift = (code - _EXACT_BELOW) & 7, ((code - _EXACT_BELOW) >> 3) - 1
    return _EXACT_BELOW + (bits if shift < 0 else (bits | 8) << shift)
