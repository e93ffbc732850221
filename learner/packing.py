"""Micro-batches: which rows go through the decoder together, and where each response token's logits come out.

Rows with the same prompt share one sequence: the prompt once, behind it each distinct response, every response seeing
the prompt and itself only (a tree mask). In groups of 8 that is a third to a fifth of the tokens, with the same
log-probs and gradients. Knows nothing of models or losses; plain NumPy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from async_agent_rl.policy import IntArray
from learner.batch import Rows

PAD_SEGMENT = -1
PROMPT_SEGMENT = 0
_SHARED_TOKENS_FLOOR = 64
_SHARED_TOKENS_PER_PROMPT_TOKEN = 2
"""Responses share one sequence while they are no longer than this many prompts (or the floor): attention is
quadratic in the sequence, so very wide trees would cost more than they save."""


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """S right-padded sequences of at most L tokens, and the T response tokens they score."""

    input_ids: NDArray[np.int64]
    """[S, L]; 0 behind the end. The last token of a response is never read, so it is not here."""
    positions: NDArray[np.int64]
    """[S, L] position of each token in its own row."""
    segments: NDArray[np.int64]
    """[S, L] PROMPT_SEGMENT, 1.. for the responses, PAD_SEGMENT behind the end."""
    is_plain: bool
    """No sequence holds more than one response: the ordinary causal mask is right."""
    states: NDArray[np.int64]
    """[U] flat places in [0, S * L) whose next-token distribution is wanted."""
    token_state: NDArray[np.int64]
    """[T] which of the states predicts the token."""
    token_target: NDArray[np.int64]
    """[T] the token's id."""
    token_index: NDArray[np.int64]
    """[T] the token's place in the flat token arrays of `Rows`."""


@dataclasses.dataclass
class _Sequence:
    """One prompt and its distinct responses, each with the rows that gave it."""

    prompt: IntArray
    responses: list[tuple[IntArray, list[int]]]
    length: int
    num_states: int = 1
    """Places whose logits are needed: the prompt's end and all response tokens but the last of each."""


def pack(
    rows: Rows, selected: Sequence[int] | NDArray[np.int64], max_rows: int, share_prompts: bool
) -> list[MicroBatch]:
    """Cut the selected rows into micro-batches, none larger than `max_rows` rows of the longest length would be.

    Args:
        rows: the update's rows.
        selected: indices of rows; each of their tokens is scored exactly once.
        max_rows: bounds the padded tokens and the logits of a micro-batch.
        share_prompts: False keeps one response per sequence, for models that refuse a tree mask.
    """
    if not len(selected):
        return []
    longest = max(len(rows.prompt_ids[i]) + len(rows.action_ids[i]) for i in selected)
    token_limit = max_rows * longest
    state_limit = max_rows * max(len(rows.action_ids[i]) for i in selected)
    sequences = _build_sequences(rows, selected, share_prompts, token_limit, state_limit)
    batches: list[MicroBatch] = []
    for is_plain in (False, True):
        chosen = [s for s in sequences if (len(s.responses) == 1) is is_plain]
        for part in _cut(sorted(chosen, key=lambda s: s.length), token_limit, state_limit):
            batches.append(_lay_out(rows, part, is_plain))
    return batches


def _build_sequences(
    rows: Rows, selected: Iterable[int], share_prompts: bool, token_limit: int, state_limit: int
) -> list[_Sequence]:
    """Merge rows with equal prompt and equal response; then, if allowed, put responses to one prompt together."""
    by_prompt: dict[bytes, dict[bytes, list[int]]] = {}
    for i in selected:
        by_prompt.setdefault(rows.prompt_ids[i].tobytes(), {}).setdefault(rows.action_ids[i].tobytes(), []).append(
            int(i)
        )
    sequences: list[_Sequence] = []
    for by_response in by_prompt.values():
        current: _Sequence | None = None
        for members in by_response.values():
            prompt, response = rows.prompt_ids[members[0]], rows.action_ids[members[0]]
            extra = len(response) - 1
            shared = max(_SHARED_TOKENS_FLOOR, _SHARED_TOKENS_PER_PROMPT_TOKEN * len(prompt))
            limit = min(token_limit, len(prompt) + shared)
            is_full = current is not None and (
                current.length + extra > limit or current.num_states + extra > state_limit
            )
            if current is None or is_full or not share_prompts:
                current = _Sequence(prompt, [], len(prompt))
                sequences.append(current)
            current.responses.append((response, members))
            current.length += extra
            current.num_states += extra
    return sequences


def _cut(ordered: Sequence[_Sequence], token_limit: int, state_limit: int) -> list[list[_Sequence]]:
    """Consecutive parts of sequences in ascending length; a part exceeds a limit only when it is a single one."""
    parts: list[list[_Sequence]] = []
    num_states = 0
    for sequence in ordered:
        fits = (
            bool(parts)
            and (len(parts[-1]) + 1) * sequence.length <= token_limit
            and num_states + sequence.num_states <= state_limit
        )
        if not fits:
            parts.append([])
            num_states = 0
        parts[-1].append(sequence)
        num_states += sequence.num_states
    return parts


def _lay_out(rows: Rows, sequences: Sequence[_Sequence], is_plain: bool) -> MicroBatch:
    width = sequences[-1].length
    ids = np.zeros((len(sequences), width), dtype=np.int64)
    positions = np.zeros_like(ids)
    segments = np.full_like(ids, PAD_SEGMENT)
    states: list[NDArray[np.int64]] = []
    token_state: list[NDArray[np.int64]] = []
    token_target: list[NDArray[np.int64]] = []
    token_index: list[NDArray[np.int64]] = []
    num_states = 0
    for line, sequence in enumerate(sequences):
        prompt_length = end = len(sequence.prompt)
        ids[line, :end] = sequence.prompt
        positions[line, :end] = np.arange(end)
        segments[line, :end] = PROMPT_SEGMENT
        first_state = num_states  # the prompt's last token predicts the first token of every response
        states.append(np.array([line * width + end - 1], dtype=np.int64))
        num_states += 1
        for number, (response, members) in enumerate(sequence.responses, start=1):
            inner = len(response) - 1
            place = slice(end, end + inner)
            ids[line, place] = response[:-1]
            positions[line, place] = prompt_length + np.arange(inner)
            segments[line, place] = number
            states.append(line * width + np.arange(end, end + inner, dtype=np.int64))
            predicted_by = np.concatenate([[first_state], num_states + np.arange(inner)]).astype(np.int64)
            num_states += inner
            end += inner
            for row in members:
                token_state.append(predicted_by)
                token_target.append(response.astype(np.int64))
                token_index.append(np.arange(rows.offsets[row], rows.offsets[row + 1], dtype=np.int64))
    return MicroBatch(
        input_ids=ids,
        positions=positions,
        segments=segments,
        is_plain=is_plain,
        states=np.concatenate(states),
        token_state=np.concatenate(token_state),
        token_target=np.concatenate(token_target),
        token_index=np.concatenate(token_index),
    )
