"""An inverted index that ranks documents by BM25, exactly and without looking at most of them.

The arrays may lie in memory or in mapped files. A short index is scored whole; a long one in the manner of MaxScore:
the rare terms of a query are scored for every document that holds them, the common ones only for documents that can
still come among the best. Upper bounds are one byte per posting; whatever the bounds let pass is scored exactly.
Documents are numbers, terms are texts: knows nothing of products, words or files.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import functools
import itertools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from envs.webshop.bm25 import contributions, inverse_frequency, inverse_norms

WHOLE_UP_TO = 16_384
"""Documents up to which scoring all of them is quicker than finding out which ones matter."""
BOUND_STEPS = 254
"""A bound b in 1..255 says that a posting adds at most b / BOUND_STEPS of its term's weight. 0: no posting."""

# What follows is about speed alone; the tests set other values to reach every path with few documents.
_POOL = 4_096  # documents from which the first threshold is taken, more or less
_FEW = 4  # times the limit: so many candidates are scored without a better threshold
_SLACK = 1e-5  # relative; covers the rounding of single-precision sums of bounds
_REMEMBERED = 4096  # terms of earlier queries; views of the arrays, except the gains of a short index
_MOST_ROWS = 24  # lent at a time; one byte per document each
_MOST_COUNTS = 30
_UNCLEAR = np.iinfo(np.uint16).max

Positions = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class IndexArrays:
    """T terms in ascending order of their UTF-8 bytes, P postings term by term, N documents, D common terms."""

    vocabulary: npt.NDArray[np.uint8]
    """The terms' bytes, one after the other."""
    term_ends: npt.NDArray[np.int64]
    """[T + 1] where each term starts in `vocabulary`, and the end."""
    posting_ends: npt.NDArray[np.int64]
    """[T + 1] where each term's postings start, and the end."""
    documents: npt.NDArray[np.int32]
    """[P] documents that hold the term, ascending within a term."""
    counts: npt.NDArray[np.uint16]
    """[P] occurrences; more than 65,535 count as that."""
    bounds: npt.NDArray[np.uint8]
    """[P] upper bounds in BOUND_STEPS."""
    peaks: npt.NDArray[np.uint8]
    """[T] the largest bound of each term."""
    lengths: npt.NDArray[np.uint8]
    """[N] `length_code` of each document."""
    ranks: npt.NDArray[np.int32]
    """[N] which of two documents with equal scores comes first: the one with the smaller rank."""
    common: npt.NDArray[np.int32]
    """[D] terms that also have a row, ascending."""
    rows: npt.NDArray[np.uint8]
    """[D, N] the bounds of common terms, spread over all documents."""
    totals: npt.NDArray[np.int64]
    """[2] documents with at least one term, and terms in all documents, with repetitions."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Term:
    """One distinct term of a query with its postings; views, not copies."""

    weight: np.float32
    bound: float
    """The most it adds to a score."""
    documents: npt.NDArray[np.int32]
    counts: npt.NDArray[np.uint16]
    bounds: npt.NDArray[np.uint8]
    row: npt.NDArray[np.uint8] | None
    gains: npt.NDArray[np.float32] | None
    """What it adds to each of its documents; of a short index only."""

    @property
    def step(self) -> np.float32:
        return self.weight / np.float32(BOUND_STEPS)

    def bounds_of(self, documents: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
        """[C] bounds of any documents; 0 for those without the term."""
        if self.row is not None:
            return self.row[documents]
        places, held = self._places_of(documents)
        return np.where(held, self.bounds[places], np.uint8(0))

    def counts_of(self, documents: npt.NDArray[np.int32]) -> npt.NDArray[np.uint16]:
        """[C] occurrences in any documents."""
        places, held = self._places_of(documents)
        return np.where(held, self.counts[places], np.uint16(0))

    def _places_of(self, documents: npt.NDArray[np.int32]) -> tuple[Positions, npt.NDArray[np.bool_]]:
        """[C] postings of any documents, and whether there is one; the place means nothing where there is none."""
        places = np.minimum(np.searchsorted(self.documents, documents), len(self.documents) - 1)
        return places, self.documents[places] == documents


class InvertedIndex:
    """Ranks documents for a list of terms. Safe to share between threads, which take turns."""

    def __init__(self, arrays: IndexArrays, *, whole_up_to: int = WHOLE_UP_TO) -> None:
        """Use the arrays as they are; nothing is read before it is needed, except the document lengths.

        Args:
            arrays: made by IndexBuilder.
            whole_up_to: documents up to which all of them are scored.
        """
        self._arrays = arrays
        self._num_documents = len(arrays.lengths)
        num_with_terms, num_terms = (int(total) for total in arrays.totals)
        self._num_with_terms = num_with_terms
        self._inverse_norms = inverse_norms(num_terms / num_with_terms if num_with_terms else 1.0)
        self._vocabulary = memoryview(arrays.vocabulary.data)
        self._is_short = self._num_documents <= whole_up_to
        self._find = functools.lru_cache(_REMEMBERED)(self._look_up)
        self._lock = threading.Lock()
        # Room for one query at a time, zero between queries.
        self._sums = np.zeros(self._num_documents if self._is_short else 0, np.float64)
        self._spare_rows: list[npt.NDArray[np.uint8]] = []
        self._counts = _unique_counts(self._inverse_norms)

    def best(self, terms: Sequence[str], limit: int) -> Positions:
        """At most `limit` documents that hold any of the terms, best first; a repeated term counts repeatedly."""
        found = [term for term in itertools.starmap(self._find, collections.Counter(terms).items()) if term]
        if not found:
            return np.empty(0, np.int64)
        with self._lock:
            documents, scores = self._score_all(found) if self._is_short else self._score_likely(found, limit)
        return documents[self._order(documents, scores, limit)].astype(np.int64)

    def document_frequencies(self) -> Positions:
        """[T] int64: how many documents hold each term."""
        return np.diff(self._arrays.posting_ends)

    def _look_up(self, term: str, repetitions: int) -> _Term | None:
        arrays, key = self._arrays, term.encode("utf-8", "surrogatepass")
        number = bisect.bisect_left(range(len(arrays.peaks)), key, key=self._term_bytes)
        if number == len(arrays.peaks) or self._term_bytes(number) != key:
            return None
        start, end = int(arrays.posting_ends[number]), int(arrays.posting_ends[number + 1])
        weight = np.float32(repetitions) * np.float32(inverse_frequency(self._num_with_terms, end - start))
        place = int(np.searchsorted(arrays.common, number))
        is_common = place < len(arrays.common) and arrays.common[place] == number
        documents, counts = arrays.documents[start:end], arrays.counts[start:end]
        gains = None
        if self._is_short:
            gains = contributions(weight, counts.astype(np.float32), self._inverse_norms[arrays.lengths[documents]])
        return _Term(
            weight,
            float(weight) * int(arrays.peaks[number]) / BOUND_STEPS,
            documents,
            counts,
            arrays.bounds[start:end],
            arrays.rows[place] if is_common else None,
            gains,
        )

    def _term_bytes(self, number: int) -> bytes:
        ends = self._arrays.term_ends
        return bytes(self._vocabulary[ends[number] : ends[number + 1]])

    def _order(self, documents: npt.NDArray[np.int32], scores: npt.NDArray[np.float64], limit: int) -> Positions:
        """Positions of the best documents. Lucene adds in double precision and compares in single precision."""
        single = scores.astype(np.float32)
        if len(single) > 2 * limit:
            least = np.partition(single, len(single) - limit)[len(single) - limit]
            good = np.flatnonzero(single >= least)
        else:
            good = np.arange(len(single))
        return good[np.lexsort((self._arrays.ranks[documents[good]], -single[good]))[:limit]]

    def _score_all(self, terms: Sequence[_Term]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        sums = self._sums
        for term in terms:
            assert term.gains is not None  # the index is short
            sums[term.documents] += term.gains
        documents = np.flatnonzero(sums).astype(np.int32)
        scores = sums[documents]
        sums.fill(0)
        return documents, scores

    def _score_likely(
        self, terms: Sequence[_Term], limit: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """Exact scores of some documents, among them the best `limit` and all that tie with the last of these."""
        terms = self._lend_rows(terms)
        by_bound = sorted(terms, key=lambda term: -term.bound)
        # rests[i]: the most that terms i, i + 1, ... can add together.
        rests = [*itertools.accumulate((term.bound for term in reversed(by_bound)), initial=0.0)][::-1]
        least = self._first_threshold(terms, by_bound, limit)
        found: list[npt.NDArray[np.int32]] = []
        bounds: list[npt.NDArray[np.float32]] = []
        # A document without any of the first terms cannot reach the threshold once the rest is too little.
        for number in range(len(by_bound)):
            if rests[number] < least:
                break
            documents, sums = self._survivors(by_bound, number, rests, least)
            found.append(documents)
            bounds.append(sums)
            if len(documents) > _FEW * limit:
                least = max(least, self._top_threshold(terms, documents, sums, limit))
        likely, reached = np.concatenate(found), np.concatenate(bounds)
        if len(likely) > _FEW * limit:
            least = max(least, self._top_threshold(terms, likely, reached, limit))
        likely = likely[reached >= least]
        scores = self._exact(terms, likely)
        self._take_rows_back(terms)
        return likely, scores

    def _first_threshold(self, terms: Sequence[_Term], by_bound: Sequence[_Term], limit: int) -> float:
        """A score that the best `limit` documents reach or exceed, from some documents of the rarest terms."""
        pool: list[npt.NDArray[np.int32]] = []
        for term in by_bound:
            # Only a part of a long list: the sample is to be good, not complete.
            pool.append(term.documents[:_POOL])
            if sum(map(len, pool)) >= _POOL:
                break
        documents = np.unique(np.concatenate(pool))
        sums = np.zeros(len(documents), np.float32)
        for term in by_bound:
            sums += term.bounds_of(documents) * term.step
        return self._top_threshold(terms, documents, sums, limit)

    def _survivors(
        self, by_bound: Sequence[_Term], number: int, rests: Sequence[float], least: float
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Documents with term `number` and none before it that may reach `least`, and their bounds."""
        documents = by_bound[number].documents
        sums = by_bound[number].bounds * by_bound[number].step
        for other in range(number + 1, len(by_bound)):
            kept = np.flatnonzero(sums >= least - rests[other])
            if len(kept) < len(documents):
                documents, sums = documents[kept], sums[kept]
            sums = sums + by_bound[other].bounds_of(documents) * by_bound[other].step
        kept = np.flatnonzero(sums >= least)
        documents, sums = documents[kept], sums[kept]
        for other in range(number):  # those have been found already
            new = np.flatnonzero(by_bound[other].bounds_of(documents) == 0)
            documents, sums = documents[new], sums[new]
        return documents, sums

    def _top_threshold(
        self,
        terms: Sequence[_Term],
        documents: npt.NDArray[np.int32],
        bounds: npt.NDArray[np.float32],
        limit: int,
    ) -> float:
        """The exact score at place `limit` among the documents of the largest bounds, less the slack.

        0 where there are fewer documents; they must be different ones.
        """
        if len(documents) < limit:
            return 0.0
        if len(documents) > 2 * limit:
            documents = documents[np.argpartition(bounds, len(bounds) - 2 * limit)[-2 * limit :]]
        scores = self._exact(terms, documents)
        return float(np.partition(scores, len(scores) - limit)[len(scores) - limit]) * (1 - _SLACK)

    def _exact(self, terms: Sequence[_Term], documents: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        """[C] float64 scores of any documents, added up in the order of the query."""
        lengths = self._arrays.lengths[documents]
        inverse = self._inverse_norms[lengths]
        scores = np.zeros(len(documents), np.float64)
        for term in terms:
            counts = self._counts[lengths, term.bounds_of(documents)]
            unclear = np.flatnonzero(counts == _UNCLEAR)
            if len(unclear):
                counts[unclear] = term.counts_of(documents[unclear])
            scores += contributions(term.weight, counts.astype(np.float32), inverse)
        return scores

    def _lend_rows(self, terms: Sequence[_Term]) -> list[_Term]:
        """Give the terms that have no row one until `_take_rows_back`, as long as there are any."""
        lent: list[_Term] = []
        num_lent = 0
        for term in terms:
            if term.row is None and num_lent < _MOST_ROWS:
                if num_lent == len(self._spare_rows):
                    self._spare_rows.append(np.zeros(self._num_documents, np.uint8))
                row = self._spare_rows[num_lent]
                row[term.documents] = term.bounds
                lent.append(dataclasses.replace(term, row=row))
                num_lent += 1
            else:
                lent.append(term)
        return lent

    def _take_rows_back(self, terms: Sequence[_Term]) -> None:
        for term in terms:
            if any(term.row is row for row in self._spare_rows):
                term.row[term.documents] = 0  # type: ignore[index]


def bounds_of_counts(counts: npt.NDArray[Any], inverse: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The bounds of postings, in BOUND_STEPS, given occurrences and inverse norms; broadcasts."""
    gains: npt.NDArray[np.float64] = counts * inverse.astype(np.float64)
    # Strictly above the share that is bounded: 1 - 1 / (1 + gain) lies in [0, 1).
    bounds = (gains / (1 + gains) * BOUND_STEPS).astype(np.uint8)
    bounds += np.uint8(1)
    return bounds


def _unique_counts(inverse: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """[256, 256] uint16: occurrences by length code and bound, or _UNCLEAR where several have that bound."""
    # One more than is kept: whether the last bound is its own shows only in the next one.
    tried = np.arange(1, _MOST_COUNTS + 2)
    bounds = bounds_of_counts(tried[None, :], inverse[:, None])
    is_new = np.diff(bounds.astype(np.int16), axis=1, prepend=0) > 0
    table = np.full((256, 256), _UNCLEAR, np.uint16)
    table[:, 0] = 0
    for code, place in zip(*np.nonzero(is_new[:, :-1] & is_new[:, 1:]), strict=True):
        table[code, bounds[code, place]] = tried[place]
    return table
