"""What an inference engine is: token ids in; token ids, log-probs and versions out.

Knows nothing of torch, of how tokens are computed or of what the text means.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One prompt to answer."""

    prompt_ids: IntArray
    """[P] int32."""
    order: tuple[int, ...]
    """(group, member, step): where the row stands; deterministic batches are sorted by it."""
    seed: int
    """Noise of this row is a function of this alone, whatever shares its batch."""
    temperature: float
    """0 = greedy; its log-probs are then those of the untempered distribution."""
    max_tokens: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Completion:
    """One answer."""

    token_ids: IntArray
    """[A] int32, A >= 1; the end token is included when it was sampled."""
    logprobs: FloatArray
    """[A] float32, nats, of the distribution that was sampled from (temperature applied)."""
    versions: IntArray
    """[A] int32: the weights that computed each token's logits."""
    finish: Literal["stop", "length"]


class Engine(Protocol):
    """Answers many requests at once. Owned by one event loop."""

    @property
    def version(self) -> int:
        """Version of the weights that the next batch will use."""
        ...

    @property
    def kv_policy(self) -> str:
        """What happens to cached keys and values when weights change; stored with every trajectory."""
        ...

    async def generate(self, request: GenerationRequest) -> Completion:
        """Raises EngineError when the engine cannot answer."""
        ...

    async def close(self) -> None: ...  # safe to call twice
