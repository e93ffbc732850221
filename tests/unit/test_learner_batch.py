"""Trajectories become rows, rows become mini-batches and micro-batches; nothing is lost or doubled.

Run: python -m pytest tests/unit/test_learner_batch.py
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_agent_rl.errors import ProtocolError
from learner.batch import Rows, build_rows, mini_batches
from learner.packing import PAD_SEGMENT, MicroBatch, pack
from tests.learner_samples import Turn, make_trajectory, random_groups


def rows_of(*trajectories: list[Turn]) -> Rows:
    made = [make_trajectory(turns, group=0, member=member) for member, turns in enumerate(trajectories)]
    return build_rows(made, "format", "state", "decoupled")


def test_rows_stand_in_the_order_of_trajectories_and_steps() -> None:
    rows = build_rows(
        [
            make_trajectory([Turn([1, 2], [3], 0.0, "a"), Turn([1], [4, 5], 10.0, "b")], group=4, member=0, version=2),
            make_trajectory([Turn([7], [8], state_key="c")], group=9, member=1),
        ],
        "format",
        "state",
        "decoupled",
    )
    assert rows.groups.tolist() == [4, 4, 9]
    assert rows.trajectories.tolist() == [0, 0, 1]
    assert rows.steps.tolist() == [0, 1, 0]
    assert rows.rewards.tolist() == [0.0, 10.0, 0.0]
    assert rows.anchors == ("a", "b", "c")
    assert rows.offsets.tolist() == [0, 1, 3, 4]
    assert rows.versions.tolist() == [2, 2, 2, 0]
    assert [ids.tolist() for ids in rows.prompt_ids] == [[1, 2], [1], [7]]
    assert [ids.tolist() for ids in rows.action_ids] == [[3], [4, 5], [8]]
    assert (rows.num_rows, rows.num_tokens) == (3, 4)


def test_the_anchor_is_the_state_or_the_page() -> None:
    trajectory = make_trajectory([Turn([1], [2], state_key="state", observation_key="page")])
    assert build_rows([trajectory], "format", "state", "none").anchors == ("state",)
    assert build_rows([trajectory], "format", "observation", "none").anchors == ("page",)


def test_what_counts_as_invalid() -> None:
    turns = [Turn([1], [2]), Turn([1], [2], format_ok=False), Turn([1], [2], is_admissible=False)]
    trajectory = make_trajectory(turns)
    assert build_rows([trajectory], "format", "state", "none").invalid.tolist() == [False, True, False]
    assert build_rows([trajectory], "admissible", "state", "none").invalid.tolist() == [False, True, True]


@pytest.mark.parametrize("value", [math.nan, -math.inf, 0.5])
def test_unusable_behaviour_logprobs_are_refused_unless_nothing_reads_them(value: float) -> None:
    trajectory = make_trajectory([Turn([1], [2]), Turn([1], [2, 3], logprob=value)], group=3, member=1)
    with pytest.raises(ProtocolError, match=r"group 3 member 1 .* token 1 .*offpolicy\.correction=none"):
        build_rows([trajectory], "format", "state", "decoupled")
    assert build_rows([trajectory], "format", "state", "none").num_rows == 2


def test_a_turn_without_tokens_is_refused() -> None:
    with pytest.raises(ProtocolError, match="step 1: 0 prompt and 1 response"):
        rows_of([Turn([1], [2]), Turn([], [2])])
    with pytest.raises(ProtocolError, match="without trajectories"):
        build_rows([], "format", "state", "none")


@given(num_prompts=st.integers(1, 60), num_rows=st.integers(1, 300), size=st.integers(1, 200), seed=st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_mini_batches_hold_each_row_once_and_are_of_equal_size(
    num_prompts: int, num_rows: int, size: int, seed: int
) -> None:
    prompts = np.random.default_rng(seed).integers(0, num_prompts, num_rows).tolist()
    parts = mini_batches(rows_of([Turn([prompt], [0]) for prompt in prompts]), size, run_seed=1, version=seed, epoch=0)
    assert sorted(np.concatenate(parts).tolist()) == list(range(num_rows))
    lengths = [len(part) for part in parts]
    assert max(lengths) - min(lengths) <= 1
    assert min(lengths) >= 1
    assert max(lengths) <= max(1.5 * size, size + 1)


def test_rows_with_the_same_prompt_stay_side_by_side() -> None:
    rows = rows_of([Turn([prompt], [0]) for prompt in (1, 2, 3) * 4])
    (part,) = mini_batches(rows, 100, run_seed=0, version=0, epoch=0)
    shuffled = [int(rows.prompt_ids[row][0]) for row in part]
    assert sum(a != b for a, b in itertools.pairwise(shuffled)) == 2


def test_mini_batches_are_shuffled_by_counter() -> None:
    rows = rows_of([Turn([prompt], [0]) for prompt in range(50)])

    def order(run_seed: int, version: int, epoch: int) -> list[int]:
        return [int(row) for part in mini_batches(rows, 10, run_seed, version, epoch) for row in part]

    assert order(0, 3, 0) == order(0, 3, 0)
    assert len({tuple(order(*place)) for place in [(0, 3, 0), (0, 3, 1), (0, 4, 0), (1, 3, 0)]}) == 4
    assert order(0, 3, 0) != list(range(50))


# --- micro-batches --------------------------------------------------------------------------------------------------


def read_back(batch: MicroBatch) -> dict[int, tuple[list[int], int]]:
    """Token place -> (everything its prediction may look at, its id), read from the laid-out arrays alone."""
    result = {}
    width = batch.input_ids.shape[1]
    for state, target, place in zip(batch.token_state, batch.token_target, batch.token_index, strict=True):
        line, column = divmod(int(batch.states[state]), width)
        segments = batch.segments[line]
        seen = [i for i in range(column + 1) if segments[i] in (0, segments[column])]
        assert batch.positions[line, seen].tolist() == list(range(len(seen)))
        result[int(place)] = (batch.input_ids[line, seen].tolist(), int(target))
    return result


@given(seed=st.integers(0, 10_000), max_rows=st.integers(1, 40), share=st.booleans())
@settings(max_examples=60, deadline=None)
def test_each_token_is_scored_once_behind_exactly_its_own_context(seed: int, max_rows: int, share: bool) -> None:
    rows = build_rows(random_groups(seed, num_groups=2, size=5), "format", "state", "decoupled")
    selected = np.flatnonzero(np.random.default_rng(seed).random(rows.num_rows) < 0.8)
    found: dict[int, tuple[list[int], int]] = {}
    for batch in pack(rows, selected, max_rows, share_prompts=share):
        part = read_back(batch)
        assert not part.keys() & found.keys()
        found |= part
    expected = {}
    for row in selected:
        prompt, action = rows.prompt_ids[row].tolist(), rows.action_ids[row].tolist()
        for number, token in enumerate(action):
            expected[int(rows.offsets[row]) + number] = (prompt + action[:number], token)
    assert found == expected


@given(seed=st.integers(0, 10_000), max_rows=st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_a_micro_batch_is_never_larger_than_its_rows_padded_to_the_longest(seed: int, max_rows: int) -> None:
    rows = build_rows(random_groups(seed, num_groups=3, size=5), "format", "state", "decoupled")
    selected = np.arange(rows.num_rows)
    longest = max(len(p) + len(a) for p, a in zip(rows.prompt_ids, rows.action_ids, strict=True))
    longest_action = max(len(a) for a in rows.action_ids)
    for batch in pack(rows, selected, max_rows, share_prompts=True):
        assert batch.input_ids.size <= max_rows * longest
        assert len(batch.states) <= max_rows * longest_action


def test_a_shared_prompt_stands_once_and_equal_responses_share_everything() -> None:
    prompt = [1, 2, 3, 4]
    rows = rows_of([Turn(prompt, [5, 6])], [Turn(prompt, [5, 6])], [Turn(prompt, [7, 8, 9])])
    (batch,) = pack(rows, np.arange(3), max_rows=8, share_prompts=True)
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5, 7, 8]]
    assert batch.segments.tolist() == [[0, 0, 0, 0, 1, 2, 2]]
    assert batch.positions.tolist() == [[0, 1, 2, 3, 4, 4, 5]]
    assert not batch.is_plain
    assert len(batch.states) == 4
    assert len(batch.token_index) == 7


def test_without_sharing_only_identical_rows_are_merged() -> None:
    prompt = [1, 2, 3]
    rows = rows_of([Turn(prompt, [5, 6])], [Turn(prompt, [5, 6])], [Turn(prompt, [7])])
    batches = pack(rows, np.arange(3), max_rows=8, share_prompts=False)
    assert [batch.is_plain for batch in batches] == [True]
    assert batches[0].input_ids.tolist() == [[1, 2, 3, 0], [1, 2, 3, 5]]
    assert batches[0].segments[0, 3] == PAD_SEGMENT


def test_nothing_selected_gives_no_micro_batch() -> None:
    rows = rows_of([Turn([1], [2])])
    assert pack(rows, np.array([], dtype=np.int64), 4, share_prompts=True) == []
