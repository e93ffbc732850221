"""Makes the arrays of an inverted index from texts, one after the other, in memory or in files.

Knows nothing of products: a document is a text and a place in the order of ties.
"""

from __future__ import annotations

import array
import collections
import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from envs.webshop.bm25 import inverse_norms, length_code
from envs.webshop.index import IndexArrays, bounds_of_counts
from envs.webshop.tokens import term_of, words

Allocate = Callable[[str, npt.DTypeLike, tuple[int, ...]], npt.NDArray[Any]]
"""Makes room for an array, given its name, dtype and shape."""

_SEGMENT_TOKENS = 4_000_000
_SLICE_POSTINGS = 4_000_000
_COMMON_FROM = 32
"""A term in one of so many documents gets a row."""
_NOT_A_TERM = -1


@dataclasses.dataclass(frozen=True, slots=True)
class _Segment:
    """The postings of some consecutive documents, by term and then by document."""

    terms: npt.NDArray[np.int32]
    documents: npt.NDArray[np.int32]
    counts: npt.NDArray[np.uint16]


class _Words(dict[str, int]):
    """From word to the number of its term, _NOT_A_TERM for a stop word; numbers new words when asked for them."""

    def __init__(self) -> None:
        super().__init__()
        self.terms: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        term = term_of(word)
        number = _NOT_A_TERM if term is None else self.terms.setdefault(term, len(self.terms))
        self[word] = number
        return number


class IndexBuilder:
    """Takes documents in order; `finish` gives the arrays. Needs about 10 bytes of memory per posting."""

    def __init__(self) -> None:
        self._words = _Words()
        self._tokens = array.array("i")
        self._num_words = array.array("i")
        self._segments: collections.deque[_Segment] = collections.deque()
        self._lengths: list[npt.NDArray[np.int64]] = []
        self._first = 0

    def add(self, text: str) -> None:
        """Append a document."""
        numbers = list(map(self._words.__getitem__, words(text)))
        self._tokens.fromlist(numbers)
        self._num_words.append(len(numbers))
        if len(self._tokens) >= _SEGMENT_TOKENS:
            self._close_segment()

    def finish(self, ranks: npt.NDArray[np.int32], allocate: Allocate | None = None) -> IndexArrays:
        """The index of all documents; the builder is used up.

        Args:
            ranks: [N] the documents' order among equal scores.
            allocate: where the arrays are to lie; in memory when None.
        """
        self._close_segment()
        lengths = np.concatenate(self._lengths)
        make = allocate or _in_memory
        vocabulary, renumbered = self._sort_terms()
        num_postings = np.zeros(len(vocabulary), np.int64)
        for segment in self._segments:
            num_postings += np.bincount(renumbered[segment.terms], minlength=len(vocabulary))
        posting_ends = _ends(num_postings, make("posting_ends", np.int64, (len(vocabulary) + 1,)))
        blob = b"".join(vocabulary)
        arrays = IndexArrays(
            vocabulary=_filled(make("vocabulary", np.uint8, (len(blob),)), np.frombuffer(blob, np.uint8)),
            term_ends=_ends([len(term) for term in vocabulary], make("term_ends", np.int64, (len(vocabulary) + 1,))),
            posting_ends=posting_ends,
            documents=make("documents", np.int32, (int(posting_ends[-1]),)),
            counts=make("counts", np.uint16, (int(posting_ends[-1]),)),
            bounds=make("bounds", np.uint8, (int(posting_ends[-1]),)),
            peaks=make("peaks", np.uint8, (len(vocabulary),)),
            lengths=make("lengths", np.uint8, lengths.shape),
            ranks=_filled(make("ranks", np.int32, lengths.shape), ranks),
            common=np.empty(0, np.int32),
            rows=np.empty((0, 0), np.uint8),
            totals=make("totals", np.int64, (2,)),
        )
        codes = np.array([length_code(length) for length in range(int(lengths.max(initial=0)) + 1)], np.uint8)
        arrays.lengths[:] = codes[lengths]
        arrays.totals[:] = (np.count_nonzero(lengths), lengths.sum(dtype=np.int64))
        self._merge(arrays, renumbered)
        _bound(arrays)
        return _spread(arrays, num_postings, make)

    def _close_segment(self) -> None:
        """Sort the gathered tokens into postings."""
        num_documents = len(self._num_words)
        tokens = np.array(self._tokens, np.int64)
        documents = np.repeat(np.arange(num_documents, dtype=np.int64), np.array(self._num_words, np.int64))
        is_term = tokens != _NOT_A_TERM
        self._lengths.append(np.bincount(documents[is_term], minlength=num_documents))
        keys = tokens[is_term] * max(num_documents, 1) + documents[is_term]
        unique, counts = np.unique(keys, return_counts=True)
        self._segments.append(
            _Segment(
                (unique // max(num_documents, 1)).astype(np.int32),
                (unique % max(num_documents, 1) + self._first).astype(np.int32),
                np.minimum(counts, np.iinfo(np.uint16).max).astype(np.uint16),
            )
        )
        self._first += num_documents
        self._tokens, self._num_words = array.array("i"), array.array("i")

    def _sort_terms(self) -> tuple[list[bytes], npt.NDArray[np.int32]]:
        """[T] terms in order, and for each number given so far its place in that order."""
        encoded = [term.encode("utf-8", "surrogatepass") for term in self._words.terms]
        order = sorted(range(len(encoded)), key=encoded.__getitem__)
        renumbered = np.empty(len(order), np.int32)
        renumbered[order] = np.arange(len(order), dtype=np.int32)
        return [encoded[number] for number in order], renumbered

    def _merge(self, arrays: IndexArrays, renumbered: npt.NDArray[np.int32]) -> None:
        """Lay the segments' postings behind each other, term by term."""
        free = arrays.posting_ends[:-1].copy()
        while self._segments:
            segment = self._segments.popleft()
            if not len(segment.terms):
                continue
            starts = np.flatnonzero(np.diff(segment.terms, prepend=-1))
            runs = np.diff(starts, append=len(segment.terms))
            terms = renumbered[segment.terms[starts]]
            places = np.arange(len(segment.terms)) + np.repeat(free[terms] - starts, runs)
            arrays.documents[places] = segment.documents
            arrays.counts[places] = segment.counts
            free[terms] += runs


def _bound(arrays: IndexArrays) -> None:
    """Fill in the postings' bounds and the terms' peaks."""
    num_with_terms, num_terms = arrays.totals
    inverse = inverse_norms(num_terms / num_with_terms if num_with_terms else 1.0)
    for start in range(0, len(arrays.documents), _SLICE_POSTINGS):
        part = slice(start, start + _SLICE_POSTINGS)
        arrays.bounds[part] = bounds_of_counts(arrays.counts[part], inverse[arrays.lengths[arrays.documents[part]]])
    if len(arrays.documents):
        arrays.peaks[:] = np.maximum.reduceat(arrays.bounds, arrays.posting_ends[:-1])


def _spread(arrays: IndexArrays, num_postings: npt.NDArray[np.int64], make: Allocate) -> IndexArrays:
    """Give the common terms their rows."""
    num_documents = len(arrays.lengths)
    common = np.flatnonzero(num_postings * _COMMON_FROM >= max(num_documents, 1)).astype(np.int32)
    rows = make("rows", np.uint8, (len(common), num_documents))
    rows[:] = 0
    for row, number in zip(rows, common, strict=True):
        part = slice(int(arrays.posting_ends[number]), int(arrays.posting_ends[number + 1]))
        row[arrays.documents[part]] = arrays.bounds[part]
    return dataclasses.replace(arrays, common=_filled(make("common", np.int32, common.shape), common), rows=rows)


def file_allocator(folder: Path) -> Allocate:
    """Arrays as .npy files of a folder, mapped into memory. Allocating raises OSError when the disk is full."""

    def allocate(name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        path = folder / f"{name}.npy"
        mapped = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        with path.open("r+b") as file:
            # Claim the space now: writing to a mapping on a full disk would end the process without a word.
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return np.asarray(mapped)

    return allocate


def open_arrays(folder: Path) -> IndexArrays:
    """The arrays that were made with `file_allocator`, mapped read-only. Raises OSError or ValueError."""
    return IndexArrays(
        **{
            # Plain arrays over the mapping: slicing numpy's own subclass costs microseconds each time.
            field.name: np.asarray(np.load(folder / f"{field.name}.npy", mmap_mode="r"))
            for field in dataclasses.fields(IndexArrays)
        }
    )


def _in_memory(_: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    return np.empty(shape, dtype)


def _ends(sizes: Sequence[int] | npt.NDArray[np.int64], into: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    into[0] = 0
    np.cumsum(np.asarray(sizes, np.int64), out=into[1:])
    return into


def _filled(into: npt.NDArray[Any], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    into[:] = values
    return into
