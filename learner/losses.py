"""What a token contributes to the loss: clipped policy gradient, KL to the start policy, entropy, off-policy weight.

Pure functions of flat [T] tensors, one entry per response token, without padding. Knows nothing of rows, models or
optimizers. Averaging over tokens is the caller's: a sum over micro-batches divided by the token count of the whole
mini-batch, so that the cut into micro-batches changes nothing. Sources: arXiv 1707.06347 (clip), 1912.09729 (dual
clip), 2505.24298 (decoupled objective), http://joschu.net/blog/kl-approx.html (estimators).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import torch
from torch import Tensor

KL_LIMIT = 10.0
"""The low-variance estimator is clamped to [-KL_LIMIT, KL_LIMIT]; beyond it the gradient is 0."""

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are cut here before exp: the value is clipped away far below it, and 0 * inf would spoil the gradient."""

KlEstimator = Literal["k1", "k2", "low_var_kl"]
Correction = Literal["decoupled", "none"]


@dataclasses.dataclass(frozen=True)
class PolicyLoss:
    """Per-token policy loss and where it was clipped; all [T]."""

    loss: Tensor
    is_clipped: Tensor
    """bool: the clipped branch is the larger loss."""
    is_dual_clipped: Tensor
    """bool: a negative advantage ran into the dual clip."""


def policy_loss(
    logprobs: Tensor, prox_logprobs: Tensor, advantages: Tensor, clip_low: float, clip_high: float, clip_dual: float
) -> PolicyLoss:
    """PPO's clipped loss with the dual clip for negative advantages.

    Args:
        logprobs: [T] of the weights being trained; carries the gradient.
        prox_logprobs: [T] of the weights from before the update.
        advantages: [T].
        clip_low, clip_high: the ratio's gradient ends at 1 - clip_low and 1 + clip_high.
        clip_dual: for A < 0 the loss is at most -A * clip_dual; above 1.
    """
    ratio = torch.exp((logprobs - prox_logprobs).clamp(max=LOG_RATIO_LIMIT))
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    upper = torch.maximum(plain, clipped)
    bound = -advantages * clip_dual
    negative = advantages < 0
    loss = torch.where(negative, torch.minimum(upper, bound), upper)
    return PolicyLoss(loss, clipped > plain, negative & (upper > bound))


def kl_estimate(logprobs: Tensor, reference_logprobs: Tensor, estimator: KlEstimator) -> Tensor:
    """[T] estimate of KL(policy || reference) at each sampled token, in nats.

    k1: log ratio (may be negative). k2: half its square. low_var_kl: exp(d) - d - 1 with d = reference - policy,
    never negative, clamped at KL_LIMIT.
    """
    difference = logprobs - reference_logprobs
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return 0.5 * difference.square()
    growth = torch.exp((-difference).clamp(max=LOG_RATIO_LIMIT))
    return (growth + difference - 1).clamp(-KL_LIMIT, KL_LIMIT)


def entropy(log_distribution: Tensor) -> Tensor:
    """[..., V] log-probabilities (of the tempered distribution) -> [...] entropy in nats."""
    return -(log_distribution.exp() * log_distribution).sum(dim=-1)


def offpolicy_weights(prox_logprobs: Tensor, behaviour_logprobs: Tensor, correction: Correction, cap: float) -> Tensor:
    """[T] weight of each token's policy loss, without gradient.

    decoupled: min(pi_prox / pi_behaviour, cap), per token. none: 1, and `behaviour_logprobs` is not read.
    """
    if correction == "none":
        return torch.ones_like(prox_logprobs)
    # Clamping the logarithm gives the same minimum and cannot overflow.
    return torch.exp((prox_logprobs - behaviour_logprobs).detach().clamp(max=math.log(cap)))


def effective_sample_fraction(weights: Tensor) -> float:
    """(sum w)^2 / (T * sum w^2): 1 when all weights are equal, 1/T when one token carries everything; 1 if T = 0."""
    if weights.numel() == 0:
        return 1.0
    wide = weights.double()
    return float(wide.sum().square() / (wide.numel() * wide.square().sum()))
