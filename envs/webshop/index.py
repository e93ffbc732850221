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
_WARM_POSTINGS = 20_000
_WARM_PART = 12  # postings to begin with, at least one in so many documents
_POOL = 2_048  # documents from which the first threshold is taken, more or less
_POOL_EACH = 40_000
_SAMPLE = 512  # of them, those that are bounded
_FEW = 8  # times the limit: so many candidates are scored without a better threshold
_SLACK = 1e-5  # relative; covers the rounding of single-precision sums of bounds
_REMEMBERED = 4096  # terms of earlier queries; views of the arrays, except the gains of a short index
_SPREAD_FROM = 8  # a term in one of so many documents is added as a whole row
_LONG_PART = 3  # from one posting in so many documents on, all documents are gone over

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
        places, held = self.places_of(documents)
        return np.where(held, self.bounds[places], np.uint8(0))

    def places_of(self, documents: npt.NDArray[np.int32]) -> tuple[Positions, npt.NDArray[np.bool_]]:
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
        self._sums: npt.NDArray[Any] = np.zeros(self._num_documents, np.float64 if self._is_short else np.float32)
        self._spare = np.empty(0 if self._is_short else self._num_documents, np.float32)

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
            sums[term.documents] += term.gains
        documents = np.flatnonzero(sums).astype(np.int32)
        scores = sums[documents]
        sums.fill(0)
        return documents, scores

    def _score_likely(
        self, terms: Sequence[_Term], limit: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """Exact scores of some documents, among them the best `limit` and all that tie with the last of these."""
        by_bound = sorted(terms, key=lambda term: -term.bound)
        # rests[i]: the most that terms i, i + 1, ... can add together.
        rests = [*itertools.accumulate((term.bound for term in reversed(by_bound)), initial=0.0)][::-1]
        budget = max(_WARM_POSTINGS, self._num_documents // _WARM_PART)
        num_added = num_postings = 0
        while num_added < len(terms):
            size = len(by_bound[num_added].documents)
            if num_postings > _POOL and num_postings + size > budget:
                break
            self._add(by_bound[num_added])
            num_added, num_postings = num_added + 1, num_postings + size
        pool = self._pool(by_bound[:num_added])
        least = self._promising_threshold(terms, by_bound[num_added:], pool, limit)
        while rests[num_added] >= least and num_added < len(terms):
            self._add(by_bound[num_added])
            num_added += 1
        documents, bounds = self._candidates(by_bound[:num_added], least - rests[num_added])
        self._clear(by_bound[:num_added])
        for number in range(num_added, len(terms)):
            bounds += by_bound[number].bounds_of(documents) * by_bound[number].step
            kept = np.flatnonzero(bounds >= least - rests[number + 1])
            documents, bounds = documents[kept], bounds[kept]
        if len(documents) > _FEW * limit:
            top = documents[np.argpartition(bounds, len(bounds) - 2 * limit)[-2 * limit :]]
            least = max(least, self._threshold(terms, top, limit))
            documents = documents[bounds >= least]
        return documents, self._exact(terms, documents)

    def _add(self, term: _Term) -> None:
        """Add a term's bounds to the sums of all documents that hold it."""
        if term.row is not None and len(term.documents) * _SPREAD_FROM > self._num_documents:
            np.multiply(term.row, term.step, out=self._spare)
            self._sums += self._spare
        else:
            self._sums[term.documents] += term.bounds * term.step

    def _pool(self, added: Sequence[_Term]) -> npt.NDArray[np.int32]:
        """Documents of the first terms, enough to choose from; of a long list only a part."""
        sizes = itertools.accumulate((len(term.documents) for term in added), initial=0)
        return np.concatenate(
            [term.documents[:_POOL_EACH] for term, size in zip(added, sizes, strict=False) if size <= _POOL]
        )

    def _promising_threshold(
        self, terms: Sequence[_Term], missing: Sequence[_Term], documents: npt.NDArray[np.int32], limit: int
    ) -> float:
        """A score that the best `limit` documents reach or exceed, from the most promising of some documents.

        Args:
            terms: of the query.
            missing: those that are not in the sums yet.
            documents: to choose from; may name one twice.
        """
        if len(documents) > _SAMPLE:
            documents = documents[np.argpartition(self._sums[documents], len(documents) - _SAMPLE)[-_SAMPLE:]]
        documents = np.unique(documents)
        bounds = self._sums[documents]
        for term in missing:
            bounds += term.bounds_of(documents) * term.step
        if len(documents) > 2 * limit:
            documents = documents[np.argpartition(bounds, len(bounds) - 2 * limit)[-2 * limit :]]
        return self._threshold(terms, documents, limit)

    def _threshold(self, terms: Sequence[_Term], documents: npt.NDArray[np.int32], limit: int) -> float:
        """The exact score of the document at place `limit`, less the slack; 0 where there are fewer."""
        if len(documents) < limit:
            return 0.0
        scores = self._exact(terms, documents)
        return float(np.partition(scores, len(scores) - limit)[len(scores) - limit]) * (1 - _SLACK)

    def _candidates(
        self, added: Sequence[_Term], least: float
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The documents with any of the added terms whose sums reach `least`, each once, and their sums."""
        if self._is_long(added):
            documents = np.flatnonzero(self._sums >= least if least > 0 else self._sums > 0).astype(np.int32)
            return documents, self._sums[documents]
        parts = []
        for term in added:
            sums = self._sums[term.documents]
            reached = np.flatnonzero(sums >= max(least, 0))
            found = term.documents[reached]
            parts.append((found, sums[reached]))
            self._sums[found] = -1  # so that the next term leaves them out
        return np.concatenate([found for found, _ in parts]), np.concatenate([sums for _, sums in parts])

    def _clear(self, added: Sequence[_Term]) -> None:
        if self._is_long(added):
            self._sums.fill(0)
        else:
            for term in added:
                self._sums[term.documents] = 0

    def _is_long(self, added: Sequence[_Term]) -> bool:
        """Whether going over all documents is quicker than going over the postings of these terms."""
        return sum(len(term.documents) for term in added) * _LONG_PART > self._num_documents

    def _exact(self, terms: Sequence[_Term], documents: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        """[C] float64 scores of any documents, added up in the order of the query."""
        inverse = self._inverse_norms[self._arrays.lengths[documents]]
        scores = np.zeros(len(documents), np.float64)
        for term in terms:
            places, held = term.places_of(documents)
            counts = np.where(held, term.counts[places], np.uint16(0)).astype(np.float32)
            scores += contributions(term.weight, counts, inverse)
        return scores
