"""The inverted index: exactly BM25's order, however it gets there, in memory and in files."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.webshop import index as index_module
from envs.webshop.bm25 import contributions, inverse_frequency, inverse_norms, length_code, lossy_length
from envs.webshop.index import IndexArrays, InvertedIndex
from envs.webshop.index_build import IndexBuilder, file_allocator, open_arrays
from envs.webshop.tokens import terms, words

VOCABULARY = [f"w{number}x" for number in range(12)]
# Small words come often, so that some terms are common, some rare, and scores tie.
texts = st.lists(st.integers(0, 60), max_size=30).map(
    lambda draws: " ".join(VOCABULARY[min(draw % 13 % 7 * (draw % 3), 11)] for draw in draws)
)


def build(documents: Sequence[str], ranks: Sequence[int] | None = None) -> IndexArrays:
    builder = IndexBuilder()
    for document in documents:
        builder.add(document)
    return builder.finish(np.array(range(len(documents)) if ranks is None else ranks, np.int32))


def score_everything(documents: Sequence[str], ranks: Sequence[int], query: str, limit: int) -> list[int]:
    """The reference: BM25 written down document by document."""
    bags = [collections.Counter(terms(document)) for document in documents]
    lengths = [sum(bag.values()) for bag in bags]
    num_with_terms = sum(length > 0 for length in lengths)
    scored = []
    for number, bag in enumerate(bags):
        total, is_hit = 0.0, False
        for term, repetitions in collections.Counter(terms(query)).items():
            if not bag[term]:
                continue
            num_with_term = sum(term in other for other in bags)
            weight = np.float32(repetitions) * np.float32(inverse_frequency(num_with_terms, num_with_term))
            inverse = inverse_norms(sum(lengths) / num_with_terms)[[length_code(lengths[number])]]
            total += float(contributions(weight, np.array([bag[term]], np.float32), inverse)[0])
            is_hit = True
        if is_hit:
            scored.append((-np.float32(total), ranks[number], number))
    return [number for _, _, number in sorted(scored)[:limit]]


@pytest.fixture
def tiny_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the pruning steps happen among a handful of documents."""
    for name, value in {"_POOL": 5, "_FEW": 1, "_MOST_ROWS": 2, "_MOST_COUNTS": 3}.items():
        monkeypatch.setattr(index_module, name, value)


@pytest.mark.usefixtures("tiny_samples")
@settings(max_examples=200, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("whole_up_to", [0, 10**9], ids=["pruned", "whole"])
def test_the_best_documents_are_those_of_plain_bm25(data: st.DataObject, whole_up_to: int) -> None:
    documents = data.draw(st.lists(texts, min_size=1, max_size=40))
    ranks = data.draw(st.permutations(range(len(documents))))
    query = data.draw(st.lists(st.sampled_from([*VOCABULARY, "unknown"]), max_size=8).map(" ".join))
    limit = data.draw(st.sampled_from([1, 3, 50]))
    index = InvertedIndex(build(documents, ranks), whole_up_to=whole_up_to)
    expected = score_everything(documents, ranks, query, limit)
    assert index.best(terms(query), limit).tolist() == expected
    # Twice: a query leaves no trace behind.
    assert index.best(terms(query), limit).tolist() == expected


@pytest.mark.usefixtures("tiny_samples")
def test_two_thousand_documents_rank_the_same_pruned_and_whole() -> None:
    rng = np.random.default_rng(0)
    draws = (rng.zipf(1.3, (2000, 30)) % 400).astype(str)
    arrays = build([" ".join(f"w{word}" for word in row) for row in draws])
    pruned, whole = InvertedIndex(arrays, whole_up_to=0), InvertedIndex(arrays)
    for _ in range(200):
        query = [f"w{word}" for word in rng.zipf(1.3, 10) % 400]
        assert pruned.best(query, 50).tolist() == whole.best(query, 50).tolist()


@pytest.mark.parametrize("whole_up_to", [0, 100])
def test_among_equal_scores_the_smaller_rank_comes_first(whole_up_to: int) -> None:
    index = InvertedIndex(build(["oak"] * 9, ranks=[8, 7, 6, 5, 4, 3, 2, 1, 0]), whole_up_to=whole_up_to)
    assert index.best(["oak"], 3).tolist() == [8, 7, 6]


def test_arrays_in_files_equal_those_in_memory(tmp_path: Path) -> None:
    documents = ["red oak table", "", "the", "oak oak", "Größe red"]
    builder = IndexBuilder()
    for document in documents:
        builder.add(document)
    builder.finish(np.arange(5, dtype=np.int32), file_allocator(tmp_path))
    stored, kept = open_arrays(tmp_path), build(documents)
    for name in IndexArrays.__slots__:
        assert np.array_equal(getattr(stored, name), getattr(kept, name)), name
    assert InvertedIndex(stored).best(["oak"], 9).tolist() == InvertedIndex(kept).best(["oak"], 9).tolist() == [3, 0]


def test_mapped_arrays_cannot_be_written(tmp_path: Path) -> None:
    IndexBuilder().finish(np.empty(0, np.int32), file_allocator(tmp_path))
    with pytest.raises(ValueError, match="read-only"):
        open_arrays(tmp_path).totals[0] = 1


def test_documents_without_terms_do_not_count() -> None:
    # Lucene's N and mean length leave them out: "oak" is then in both of two documents, not in two of four.
    arrays = build(["oak", "oak pine", "", "the of"])
    assert arrays.totals.tolist() == [2, 3]


def test_bounds_are_never_below_what_a_posting_adds() -> None:
    rng = np.random.default_rng(1)
    arrays = build(
        [" ".join(["w"] * int(count) + ["other"] * int(rest)) for count, rest in rng.integers(1, 90, (50, 2))]
    )
    inverse = inverse_norms(arrays.totals[1] / arrays.totals[0])[arrays.lengths[arrays.documents]]
    shares = contributions(np.float32(1), arrays.counts.astype(np.float32), inverse)
    bounds = arrays.bounds / index_module.BOUND_STEPS
    assert np.all(bounds > shares)
    assert np.all(bounds - shares < 1.01 / index_module.BOUND_STEPS)


def test_an_empty_index_finds_nothing() -> None:
    assert InvertedIndex(build([])).best(["oak"], 50).tolist() == []
    assert InvertedIndex(build([]), whole_up_to=-1).best(["oak"], 50).tolist() == []


def test_lengths_fit_a_byte_and_never_grow() -> None:
    kept = [lossy_length(length) for length in range(3000)]
    assert all(0 <= length - short < max(length, 1) / 8 for length, short in enumerate(kept))
    assert [length_code(length) for length in (0, 40, 2**31 - 1)] == [0, 40, 255]
    assert kept == sorted(kept)


def test_scores_are_rounded_as_in_lucene() -> None:
    # weight - weight / (1 + tf / norm), each operation rounded to single precision, worked out by hand.
    one, third = np.float32(1), np.float32(1 / 3)
    assert contributions(np.float32(2), np.array([1], np.float32), np.array([third]))[0] == np.float32(2) - np.float32(
        2
    ) / (one + third)
    assert inverse_norms(8.0)[8] == one / np.float32(0.9)


@given(st.text(alphabet="ab1_2'.:,; -Zs", max_size=20))
def test_plain_texts_break_as_all_others_do(text: str) -> None:
    # A letter beyond ASCII sends the whole text through the general rule.
    assert [*words(text), "ø"] == words(f"{text} ø")
