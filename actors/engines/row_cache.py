"""Keys and values of a batch of rows while it is decoded: filled once from prefilled prompts, then written in place.

A drop-in for transformers' DynamicCache, which copies the whole cache to append one token. Knows nothing of models
or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class RowCacheLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # transformers hooks subclassing without types
    """Keys and values of one layer: [R, heads, prompt_width + room, head_dim], written up to `length`."""

    def __init__(self, keys: Tensor, values: Tensor, length: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._all_keys = keys
        self._all_values = values
        self._length = length
        self.is_initialized = True
        self._written()

    def _written(self) -> tuple[Tensor, Tensor]:
        """Views of what is written so far, where transformers looks for it."""
        keys, values = self._all_keys[:, :, : self._length], self._all_values[:, :, : self._length]
        self.keys, self.values = keys, values
        return keys, values

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append [R, heads, n, head_dim] states; returns views of everything written so far."""
        start = self._length
        self._length = start + key_states.shape[-2]
        self._all_keys[:, :, start : self._length] = key_states
        self._all_values[:, :, start : self._length] = value_states
        return self._written()

    def get_seq_length(self, *_args: Any) -> int:
        return self._length

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, in this order."""
        self._all_keys = self._all_keys.index_select(0, indices)
        self._all_values = self._all_values.index_select(0, indices)
        self._written()


def expand_prefilled(parts: Sequence[Any], sources: Sequence[Tensor], width: int, room: int) -> Cache:
    """Lay the prompts of several prefill passes side by side, each as often as it is needed.

    Args:
        parts: caches of the passes, in row order, each of prompts padded on the right.
        sources: for each pass, [rows] int64: which of its prompts a row continues.
        width: tokens of the longest prompt; shorter passes leave a gap that the attention mask must hide.
        room: tokens that will be generated at most.
    """
    layers: list[Any] = []
    for pieces in zip(*(part.layers for part in parts), strict=True):
        keys = _expand([piece.keys for piece in pieces], sources, width, room)
        values = _expand([piece.values for piece in pieces], sources, width, room)
        layers.append(RowCacheLayer(keys, values, width))
    return Cache(layers=layers)


def _expand(states: Sequence[Tensor], sources: Sequence[Tensor], width: int, room: int) -> Tensor:
    """[sum of rows, heads, width + room, head_dim] from one [prompts, heads, length, head_dim] for each pass."""
    _, heads, _, head_dim = states[0].shape
    expanded = states[0].new_empty(sum(len(source) for source in sources), heads, width + room, head_dim)
    row = 0
    for state, source in zip(states, sources, strict=True):
        rows = expanded[row : row + len(source)]
        length = state.shape[2]
        rows[:, :, :length] = state.index_select(0, source)
        rows[:, :, length:width] = 0  # hidden by the mask, but 0 x NaN would still be NaN
        row += len(source)
    return expanded
