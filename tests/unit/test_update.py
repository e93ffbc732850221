"""One update: the same gradient however it is cut, and all or nothing.

Run: python -m pytest tests/unit/test_update.py
"""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from async_agent_rl.config import Config, LearnerSection
from learner.batch import Rows, build_rows
from learner.update import PolicyUpdater, UpdateStats
from tests.learner_samples import Turn, make_trajectory, random_groups, tiny_model


def config_of(**learner: Any) -> Config:
    values: dict[str, Any] = {
        "learning_rate": 1e-3,
        "warmup_updates": 0,
        "mini_batch_rows": 1000,
        "micro_batch_rows": 4,
        "advantage_scale": 0.1,
    }
    return Config(learner=LearnerSection(**values | learner))


def rows_of(seed: int = 3) -> Rows:
    return build_rows(random_groups(seed, num_groups=3, size=4), "format", "state", "decoupled")


def weights_of(model: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def gradient_after_update(config: Config, rows: Rows) -> tuple[torch.Tensor, UpdateStats]:
    """Gradient of the last (here: only) optimizer step, in float64 so that only the algorithm can differ."""
    updater = PolicyUpdater(tiny_model(dtype=torch.float64), config)
    updater.optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]
    outcome = updater.update(rows, version=0)
    assert outcome.stats is not None
    return torch.cat([parameter.grad.flatten() for parameter in updater.model.parameters()]), outcome.stats


def plain_loss(config: Config, rows: Rows, model: Any) -> torch.Tensor:
    """The mini-batch loss at ratio 1 by its definition: one row at a time, no packing; mean over all tokens."""
    settings, total = config.learner, torch.zeros((), dtype=torch.float64)
    reference = copy.deepcopy(model)
    advantages = PolicyUpdater(copy.deepcopy(model), config)._advantages(rows).total * settings.advantage_scale
    for row in range(rows.num_rows):
        prompt, action = rows.prompt_ids[row].tolist(), rows.action_ids[row].tolist()
        ids = torch.tensor([prompt + action])
        both = [m(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1) for m in (model, reference)]
        new, start = (logs[range(len(action)), action] for logs in both)
        behaviour = torch.from_numpy(rows.behaviour_logprobs[rows.offsets[row] : rows.offsets[row + 1]].copy())
        weight = (new.detach() - behaviour).exp().clamp(max=config.offpolicy.cap)
        difference = start.detach() - new
        kl = difference.exp() - difference - 1
        entropy = -(both[0].exp() * both[0]).sum(-1)
        policy = -weight * advantages[row] * (new - new.detach()).exp()
        total = total + (policy + settings.kl_coef * kl - settings.entropy_coef * entropy).sum()
    return total / rows.num_tokens


def test_the_gradient_is_that_of_the_definition() -> None:
    config = config_of(max_grad_norm=1e9, kl_coef=0.1, entropy_coef=0.05, weight_decay=0.0)
    rows, model = rows_of(), tiny_model(dtype=torch.float64)
    loss = plain_loss(config, rows, model)
    torch.autograd.backward(loss)
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    got, stats = gradient_after_update(config, rows)
    assert stats.loss == pytest.approx(float(loss.detach()), rel=1e-4)
    assert float((got - expected).norm() / expected.norm()) < 1e-4  # scores are float32


@pytest.mark.parametrize("micro_batch_rows", [1, 2, 3, 7, 1000])
def test_the_cut_into_micro_batches_does_not_change_the_gradient(micro_batch_rows: int) -> None:
    rows = rows_of()
    whole, whole_stats = gradient_after_update(config_of(micro_batch_rows=500, max_grad_norm=1e9), rows)
    cut, stats = gradient_after_update(config_of(micro_batch_rows=min(1000, micro_batch_rows), max_grad_norm=1e9), rows)
    assert float((cut - whole).norm() / whole.norm()) < 1e-5
    assert stats.grad_norm == pytest.approx(whole_stats.grad_norm, rel=1e-5)


def test_the_first_step_has_ratio_one_so_nothing_is_clipped() -> None:
    _, stats = gradient_after_update(config_of(), rows_of())
    assert stats.clip_fraction == 0.0
    assert stats.approx_kl == pytest.approx(0.0, abs=1e-6)
    assert stats.optimizer_steps == 1


def test_later_steps_see_the_ratio_to_the_weights_from_before_the_update() -> None:
    updater = PolicyUpdater(tiny_model(), config_of(epochs=3, mini_batch_rows=8, learning_rate=3e-2))
    outcome = updater.update(rows_of(), version=0)
    assert outcome.stats is not None
    assert outcome.stats.approx_kl > 1e-3
    assert outcome.stats.clip_fraction > 0.0
    assert outcome.stats.optimizer_steps == updater.optimizer_steps == 3 * round(rows_of().num_rows / 8)


def test_training_makes_good_actions_likelier_and_bad_ones_rarer() -> None:
    prompt = [1, 2, 3]
    trajectories = [
        make_trajectory([Turn(prompt, [10], 10.0 if member < 2 else 0.0, logprob=-4.5)], 0, member)
        if member < 2
        else make_trajectory([Turn(prompt, [20], logprob=-4.5)], 0, member)
        for member in range(4)
    ]
    rows = build_rows(trajectories, "format", "state", "decoupled")
    updater = PolicyUpdater(tiny_model(), config_of(learning_rate=1e-2))
    before, _ = updater.scorer.score_all(rows, np.arange(4), 4)
    updater.update(rows, version=0)
    after, _ = updater.scorer.score_all(rows, np.arange(4), 4)
    assert (after[:2] > before[:2]).all()
    assert (after[2:] < before[2:]).all()


def test_leaving_out_zero_advantages_changes_nothing() -> None:
    constant = [make_trajectory([Turn([4, 5], [6, 7])], group=9, member=member) for member in range(4)]
    rows = build_rows([*random_groups(3), *constant], "format", "state", "decoupled")
    results = []
    for skip in (False, True):
        updater = PolicyUpdater(tiny_model(), config_of(skip_zero_advantage=skip, mini_batch_rows=7, epochs=2))
        outcome = updater.update(rows, version=0)
        assert outcome.stats is not None
        results.append((weights_of(updater.model), outcome.stats))
    assert torch.allclose(results[0][0], results[1][0], atol=1e-6)
    assert results[1][1].rows_trained <= results[0][1].rows_trained - 4
    assert results[1][1].policy_loss == pytest.approx(results[0][1].policy_loss, abs=1e-6)


def test_a_batch_without_signal_moves_nothing_even_with_momentum() -> None:
    updater = PolicyUpdater(tiny_model(), config_of())
    updater.update(rows_of(), version=0)
    before = weights_of(updater.model)
    constant = [make_trajectory([Turn([4, 5], [6, 7])], group=9, member=member) for member in range(4)]
    outcome = updater.update(build_rows(constant, "format", "state", "decoupled"), version=1)
    assert outcome.status == "applied"
    assert outcome.stats is not None
    assert outcome.stats.optimizer_steps == 0
    assert torch.equal(weights_of(updater.model), before)


def test_the_learning_rate_rises_over_the_first_updates() -> None:
    updater = PolicyUpdater(tiny_model(), config_of(learning_rate=1e-3, warmup_updates=4))
    rates = []
    for version in range(6):
        stats = updater.update(rows_of(), version).stats
        assert stats is not None
        rates.append(stats.learning_rate)
    assert rates == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3])


def optimizer_tensors(updater: PolicyUpdater) -> list[torch.Tensor]:
    return [value for state in updater.optimizer.state_dict()["state"].values() for value in state.values()]


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_non_finite_update_leaves_weights_and_optimizer_as_they_were(reward: float) -> None:
    updater = PolicyUpdater(tiny_model(), config_of(mini_batch_rows=4))
    updater.update(rows_of(), version=0)
    weights = weights_of(updater.model)
    state = [value.clone() for value in optimizer_tensors(updater)]
    steps = updater.optimizer_steps
    rows = rows_of(seed=5)
    rewards = rows.rewards.copy()
    rewards[-1] = reward  # one bad group; steps before it may already have been taken when it is met
    outcome = updater.update(dataclasses.replace(rows, rewards=rewards), 1)
    assert outcome.status == "non_finite"
    assert outcome.stats is None
    assert torch.equal(weights_of(updater.model), weights)
    assert all(torch.equal(a, b) for a, b in zip(optimizer_tensors(updater), state, strict=True))
    assert updater.optimizer_steps == steps
    assert updater.update(rows_of(), version=1).status == "applied"


def test_an_update_told_to_stop_between_mini_batches_leaves_no_trace() -> None:
    updater = PolicyUpdater(tiny_model(), config_of(mini_batch_rows=4))
    before = weights_of(updater.model)
    answers = iter([False, False, True])
    outcome = updater.update(rows_of(), 0, should_stop=lambda: next(answers))
    assert outcome.status == "abandoned"
    assert torch.equal(weights_of(updater.model), before)
    assert not updater.optimizer.state_dict()["state"]
    assert updater.optimizer_steps == 0


def test_the_same_seed_gives_the_same_bits_and_another_one_does_not() -> None:
    def train(seed: int) -> torch.Tensor:
        config = config_of(mini_batch_rows=5)
        config = msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, seed=seed))
        updater = PolicyUpdater(tiny_model(), config)
        for version in range(3):
            updater.update(rows_of(), version)
        return weights_of(updater.model)

    assert torch.equal(train(0), train(0))
    assert not torch.equal(train(0), train(1))


def test_the_mismatch_between_sampler_and_learner_is_measured() -> None:
    rows = rows_of()
    updater = PolicyUpdater(tiny_model(), config_of())
    prox, _ = updater.scorer.score_all(rows, np.arange(rows.num_rows), 8)
    behaviour = prox.numpy().copy()
    behaviour[2] -= 0.5
    stats = updater.update(dataclasses.replace(rows, behaviour_logprobs=behaviour), version=0).stats
    assert stats is not None
    assert stats.mismatch_max == pytest.approx(0.5, abs=1e-5)
    assert stats.mismatch_mean == pytest.approx(0.5 / rows.num_tokens, rel=1e-3)
    assert stats.effective_sample_size < 1.0
    exact = (
        PolicyUpdater(tiny_model(), config_of())
        .update(dataclasses.replace(rows, behaviour_logprobs=prox.numpy()), version=0)
        .stats
    )
    assert exact is not None
    assert exact.effective_sample_size == pytest.approx(1.0)


def test_the_reference_stays_the_start_policy() -> None:
    updater = PolicyUpdater(tiny_model(), config_of(kl_coef=0.01, learning_rate=1e-2))
    kls = []
    for version in range(3):
        stats = updater.update(rows_of(seed=version), version).stats
        assert stats is not None
        kls.append(stats.kl)
    assert kls[0] == pytest.approx(0.0, abs=1e-7)
    assert kls[1] > 1e-4
    assert kls[2] > 1e-4
