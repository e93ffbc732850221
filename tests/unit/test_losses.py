"""Token losses against tables that can be checked by hand.

Run: python -m pytest tests/unit/test_losses.py
"""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

from learner.losses import (
    KlEstimator,
    effective_sample_fraction,
    entropy,
    kl_estimate,
    offpolicy_weights,
    policy_loss,
)


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss", "is_clipped", "is_dual_clipped"),
    [
        (1.0, 1.5, -1.2, True, False),
        (1.0, 0.5, -0.5, False, False),
        (-1.0, 1.5, 1.5, False, False),
        (-1.0, 0.5, 0.8, True, False),
        (-1.0, 5.0, 3.0, False, True),
    ],
)
def test_policy_loss_table(
    advantage: float, ratio: float, loss: float, is_clipped: bool, is_dual_clipped: bool
) -> None:
    old = torch.tensor([-1.0], dtype=torch.float64)
    got = policy_loss(old + math.log(ratio), old, torch.tensor([advantage], dtype=torch.float64), 0.2, 0.2, 3.0)
    assert got.loss.tolist() == pytest.approx([loss])
    assert got.is_clipped.tolist() == [is_clipped]
    assert got.is_dual_clipped.tolist() == [is_dual_clipped]


def test_clip_bounds_may_differ() -> None:
    old = torch.zeros(2, dtype=torch.float64)
    new = torch.log(torch.tensor([1.5, 0.5], dtype=torch.float64))
    got = policy_loss(new, old, torch.tensor([1.0, -1.0], dtype=torch.float64), 0.1, 0.28, 3.0)
    assert got.loss.tolist() == pytest.approx([-1.28, 0.9])


def test_a_clipped_token_has_no_gradient_and_an_unclipped_one_has_its_advantage() -> None:
    new = torch.log(torch.tensor([1.5, 1.0, 0.5, 5.0])).requires_grad_()
    torch.autograd.backward(
        policy_loss(new, torch.zeros(4), torch.tensor([1.0, 2.0, -1.0, -1.0]), 0.2, 0.2, 3.0).loss.sum()
    )
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx([0.0, -2.0, 0.0, 0.0])


def test_a_huge_ratio_leaves_loss_and_gradient_finite() -> None:
    new = torch.tensor([200.0, 200.0]).requires_grad_()
    loss = policy_loss(new, torch.zeros(2), torch.tensor([1.0, -1.0]), 0.2, 0.2, 3.0).loss
    torch.autograd.backward(loss.sum())
    assert new.grad is not None
    assert loss.tolist() == pytest.approx([-1.2, 3.0])
    assert new.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("difference", "expected"), [(0.5, 0.14872), (-0.5, 0.10653), (3.0, 10.0), (-12.0, 10.0), (0.0, 0.0), (200.0, 10.0)]
)
def test_low_variance_kl_table(difference: float, expected: float) -> None:
    policy = torch.tensor([-1.0], dtype=torch.float64)
    got = kl_estimate(policy, policy + difference, "low_var_kl")
    assert got.tolist() == pytest.approx([expected], abs=5e-6)


def test_k1_and_k2() -> None:
    policy, reference = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0])
    assert kl_estimate(policy, reference, "k1").tolist() == [0.5, -1.0]
    assert kl_estimate(policy, reference, "k2").tolist() == [0.125, 0.5]


def test_a_clamped_kl_has_no_gradient() -> None:
    policy = torch.tensor([-200.0, -5.0, -1.0]).requires_grad_()
    torch.autograd.backward(kl_estimate(policy, torch.tensor([-1.0, -1.0, -0.5]), "low_var_kl").sum())
    assert policy.grad is not None
    assert policy.grad.tolist() == pytest.approx([0.0, 0.0, 1 - math.exp(0.5)])


@pytest.mark.parametrize("estimator", get_args(KlEstimator))
def test_equal_policies_have_no_kl(estimator: KlEstimator) -> None:
    logprobs = torch.tensor([-0.3, -4.0])
    assert kl_estimate(logprobs, logprobs, estimator).tolist() == [0.0, 0.0]


def test_entropy_equals_logsumexp_minus_the_mean_logit() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [2.0, -1.0, 0.5, 0.0]], dtype=torch.float64)
    expected = torch.logsumexp(logits, -1) - (torch.softmax(logits, -1) * logits).sum(-1)
    got = entropy(torch.log_softmax(logits, -1))
    assert got[0].item() == pytest.approx(math.log(4))
    assert torch.allclose(got, expected)


def test_weights_are_the_capped_ratio_of_old_to_behaviour() -> None:
    prox = torch.log(torch.tensor([0.5, 0.9, 0.2], dtype=torch.float64)).requires_grad_()
    behaviour = torch.log(torch.tensor([0.4, 0.1, 0.4], dtype=torch.float64))
    got = offpolicy_weights(prox, behaviour, "decoupled", cap=2.0)
    assert got.tolist() == pytest.approx([1.25, 2.0, 0.5])
    assert not got.requires_grad


def test_a_huge_ratio_gives_the_cap() -> None:
    assert offpolicy_weights(torch.tensor([0.0]), torch.tensor([-500.0]), "decoupled", cap=2.0).tolist() == [2.0]


def test_without_correction_weights_are_one_even_without_behaviour_logprobs() -> None:
    assert offpolicy_weights(torch.tensor([-1.0]), torch.tensor([math.nan]), "none", cap=2.0).tolist() == [1.0]


def test_effective_sample_fraction() -> None:
    assert effective_sample_fraction(torch.ones(7)) == pytest.approx(1.0)
    assert effective_sample_fraction(torch.tensor([1.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert effective_sample_fraction(torch.tensor([2.0, 1.0])) == pytest.approx(0.9)
    assert effective_sample_fraction(torch.ones(0)) == 1.0
