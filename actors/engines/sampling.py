"""Choosing the next token of every row from its logits, with noise that belongs to the row.

Knows nothing of models, caches or where the logits come from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from async_agent_rl import seeds
from async_agent_rl.policy import GenerationRequest
from async_agent_rl.seeds import Purpose


def row_uniforms(requests: Sequence[GenerationRequest], num_tokens: int) -> Tensor:
    """One uniform number for each token a row may generate.

    Args:
        requests: R rows.
        num_tokens: T, at least the largest `max_tokens`; a row's numbers do not depend on it.

    Returns:
        [R, T] float64 in [0, 1); a function of each request's seed alone. Greedy rows hold zeros.
    """
    uniforms = np.zeros((len(requests), num_tokens))
    for row, request in enumerate(requests):
        if request.temperature > 0:
            uniforms[row] = seeds.generator(request.seed, Purpose.SAMPLING).random(num_tokens)
    return torch.from_numpy(uniforms)


def choose_tokens(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Sample (or, at temperature 0, take the best) token of each row.

    Sampling inverts the cumulative distribution, so one uniform number decides one token: two computations of the
    same logits that differ in the last bits choose differently only when the number falls into that gap.

    Args:
        logits: [R, V] any float type.
        temperatures: [R] float32; 0 = greedy.
        uniforms: [R] float64 in [0, 1).

    Returns:
        tokens [R] int64 and their log-probs [R] float32, of the tempered distribution (untempered where greedy).
        Logits that are not finite give log-probs that are not finite.
    """
    greedy = temperatures == 0
    divisors = torch.where(greedy, torch.ones_like(temperatures), temperatures)
    logprobs = torch.log_softmax(logits.float() / divisors[:, None], dim=-1)
    if bool(greedy.all()):
        tokens = logprobs.argmax(dim=-1)
    else:
        tokens = _invert(logprobs, uniforms)
        if bool(greedy.any()):
            tokens = torch.where(greedy, logprobs.argmax(dim=-1), tokens)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def _invert(logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """[R] int64: the token at which each row's cumulative probability passes its uniform number."""
    # float64: a float32 running sum over a large vocabulary would misplace the rare tokens.
    cumulative = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    below = torch.nextafter(total, torch.zeros_like(total))
    drawn = torch.searchsorted(cumulative, torch.minimum(uniforms[:, None] * total, below), right=True)[:, 0]
    # Only rows that are not finite can point past the end; they are refused by the caller.
    return drawn.clamp(max=logprobs.shape[-1] - 1)
