"""Text to token ids and back, with the model's own tokenizer. Knows nothing of environments or engines."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from async_agent_rl.policy import IntArray

_CACHED_PROMPTS = 4096


@dataclasses.dataclass(frozen=True)
class FittedPrompt:
    """The prompt that is sent."""

    ids: IntArray
    """[P] int32, read-only, P <= budget."""
    choice: int
    """Which of the observation's prompts it is: so many shorter histories were needed."""
    is_cut: bool
    """Even the last one was too long and lost its middle."""


class PromptCodec:
    """One per process; remembers the prompts it has seen, because the members of a group share most of theirs."""

    def __init__(self, tokenizer: Any) -> None:
        """
        Args:
            tokenizer: from `model_files.load_tokenizer`. With a chat template, a prompt becomes one user message and
                the opening of the answer; without one it is sent as it is, with the tokenizer's own special tokens.
        """
        self._tokenizer = tokenizer
        self._encode_cached = functools.lru_cache(maxsize=_CACHED_PROMPTS)(self._encode)

    def encode(self, text: str) -> IntArray:
        """[P] int32, read-only."""
        return self._encode_cached(text)

    def fit(self, prompts: Sequence[str], budget: int) -> FittedPrompt:
        """The first prompt of at most `budget` tokens; if there is none, the last one without its middle.

        Args:
            prompts: best first, at least one.
            budget: tokens, at least 1.
        """
        for choice, text in enumerate(prompts):
            ids = self.encode(text)
            if len(ids) <= budget:
                return FittedPrompt(ids, choice, is_cut=False)
        head, tail = budget // 2, budget - budget // 2
        return FittedPrompt(np.concatenate([ids[:head], ids[-tail:]]), len(prompts) - 1, is_cut=True)

    def decode(self, ids: IntArray) -> str:
        """The text of an answer, without special tokens."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _encode(self, text: str) -> IntArray:
        tokenizer = self._tokenizer
        if getattr(tokenizer, "chat_template", None):
            message = [{"role": "user", "content": text}]
            text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
            listed = tokenizer(text, add_special_tokens=False).input_ids  # the template wrote them
        else:
            listed = tokenizer(text).input_ids
        ids = np.asarray(listed, dtype=np.int32)
        ids.flags.writeable = False
        return ids
