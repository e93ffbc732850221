"""One update: a batch of rows becomes new weights.

    old log-probs -> reference log-probs -> advantages -> epochs x shuffled mini-batches -> AdamW steps

All or nothing: an update that meets a number that is not finite, or is asked to stop, leaves weights and optimizer as
they were. Knows nothing of sockets, versions' publication or files.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from async_agent_rl.config import Config
from learner.advantages import Advantages, gigpo_advantages, number_keys
from learner.batch import Rows, mini_batches
from learner.logprobs import TokenScorer
from learner.losses import effective_sample_fraction, kl_estimate, offpolicy_weights, policy_loss
from learner.packing import MicroBatch

ZERO_ADVANTAGE = 1e-8
"""Scaled advantages smaller than this teach nothing; they arise from rounding in sums that cancel."""


@dataclasses.dataclass(frozen=True)
class UpdateStats:
    """What the update did. Means are over the tokens of all optimizer steps; rows left out contribute zeros."""

    loss: float
    policy_loss: float
    kl: float
    """To the reference policy, before its coefficient; 0 when it is not computed."""
    approx_kl: float
    """Mean log-ratio of old to new weights (k1), at the moment of each step."""
    entropy: float
    """Mean over the tokens scored before the update, nats."""
    clip_fraction: float
    dual_clip_fraction: float
    grad_norm: float
    """Mean over optimizer steps, before clipping."""
    effective_sample_size: float
    """Of the off-policy weights, in (0, 1]."""
    mismatch_mean: float
    """Mean |pi_prox - pi_behaviour| per token in log-probs, nats; 0 when there are no behaviour log-probs."""
    mismatch_max: float
    learning_rate: float
    optimizer_steps: int
    rows_trained: int
    """Rows that went through the decoder with gradient, once each whatever the number of epochs."""


@dataclasses.dataclass(frozen=True)
class UpdateOutcome:
    """`applied`: weights are new. `non_finite`, `abandoned`: weights and optimizer are as before."""

    status: Literal["applied", "non_finite", "abandoned"]
    advantages: Advantages
    """Before `advantage_scale`."""
    stats: UpdateStats | None
    """None unless applied."""


@dataclasses.dataclass
class _Targets:
    """What the tokens of one update are trained towards; flat [T] tensors."""

    prox: Tensor
    """Log-probs under the weights from before the update. Those of the first mini-batch are NaN until it is trained:
    nothing has changed by then, so its own forward pass gives them."""
    entropies: Tensor
    """NaN where not known (yet)."""
    reference: Tensor | None
    behaviour: Tensor
    advantages: Tensor


class PolicyUpdater:
    """Owns the optimizer, the frozen reference and the scorers of one model; the model itself is the caller's."""

    def __init__(self, model: Any, config: Config) -> None:
        """
        Args:
            model: a transformers causal LM; its current weights become the reference if `learner.kl_coef` > 0.
            config: of the run.

        Raises:
            InputError: the model is no causal LM (see `TokenScorer`).
        """
        self._config = config
        self._settings = config.learner
        self.model = model
        self.scorer = TokenScorer(model, config.train.temperature)
        self._reference: TokenScorer | None = None
        if self._settings.kl_coef > 0:
            frozen = copy.deepcopy(model).requires_grad_(False)
            self._reference = TokenScorer(frozen, config.train.temperature, self.scorer.layout)
        self._parameters: list[nn.Parameter] = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self._parameters,
            lr=self._settings.learning_rate,
            betas=self._settings.adam_betas,
            weight_decay=self._settings.weight_decay,
        )
        self.optimizer_steps = 0
        """Since the start of the run."""

    def update(self, rows: Rows, version: int, should_stop: Callable[[], bool] = lambda: False) -> UpdateOutcome:
        """Train on the rows once.

        Args:
            rows: of complete groups.
            version: of the weights before the update; seeds the shuffle and sets the warm-up.
            should_stop: asked before each mini-batch; True abandons the update.
        """
        settings = self._settings
        advantages = self._advantages(rows)
        scaled = advantages.total * settings.advantage_scale
        teaches = (~(scaled.abs() < ZERO_ADVANTAGE)).numpy()  # a NaN teaches: it must not pass unnoticed
        chosen = np.flatnonzero(teaches) if settings.skip_zero_advantage else np.arange(rows.num_rows)
        steps = self._plan_steps(rows, version, teaches)
        targets = self._targets(rows, chosen, steps[0] if steps else chosen[:0], scaled)
        rate = settings.learning_rate * min(1.0, (version + 1) / max(1, settings.warmup_updates))
        for group in self.optimizer.param_groups:
            group["lr"] = rate

        backup = _Backup(self._parameters, self.optimizer)
        totals = _Totals()
        for part in steps:
            if should_stop():
                backup.restore()
                return UpdateOutcome("abandoned", advantages, None)
            num_tokens = int(rows.token_counts()[part].sum())
            kept = np.intersect1d(part, chosen, assume_unique=True)
            if not self._step(rows, kept, num_tokens, targets, totals):
                backup.restore()
                return UpdateOutcome("non_finite", advantages, None)
        self.optimizer_steps += totals.steps
        return UpdateOutcome("applied", advantages, self._stats(targets, totals, rate, len(chosen) if steps else 0))

    def _plan_steps(self, rows: Rows, version: int, teaches: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
        """The mini-batches of all epochs; one without any gradient is left out: momentum alone must move nothing."""
        settings = self._settings
        always = settings.kl_coef > 0 or settings.entropy_coef > 0
        return [
            part
            for epoch in range(settings.epochs)
            for part in mini_batches(rows, settings.mini_batch_rows, self._config.run.seed, version, epoch)
            if always or teaches[part].any()
        ]

    def _advantages(self, rows: Rows) -> Advantages:
        keys, _ = number_keys(rows.groups.tolist(), rows.anchors)
        return gigpo_advantages(
            rewards=torch.from_numpy(rows.rewards),
            invalid=torch.from_numpy(rows.invalid),
            groups=torch.from_numpy(rows.groups),
            trajectories=torch.from_numpy(rows.trajectories),
            steps=torch.from_numpy(rows.steps),
            keys=keys,
            settings=self._config.gigpo,
            penalty=self._settings.invalid_penalty,
        )

    def _targets(self, rows: Rows, chosen: NDArray[np.int64], first: NDArray[np.int64], scaled: Tensor) -> _Targets:
        """Score, before anything changes, all chosen rows but those of the first mini-batch."""
        later = np.setdiff1d(chosen, first, assume_unique=True)
        prox, entropies = self.scorer.score_all(rows, later, self._settings.micro_batch_rows)
        reference = None
        if self._reference is not None:
            reference, _ = self._reference.score_all(rows, chosen, self._settings.micro_batch_rows)
        return _Targets(
            prox=prox,
            entropies=entropies,
            reference=reference,
            behaviour=torch.from_numpy(rows.behaviour_logprobs.copy()).to(prox),
            advantages=scaled.repeat_interleave(torch.from_numpy(rows.token_counts())).to(prox),
        )

    def _step(self, rows: Rows, kept: NDArray[np.int64], num_tokens: int, targets: _Targets, totals: _Totals) -> bool:
        """One optimizer step; False, with the weights untouched, when loss or gradient is not finite.

        Args:
            rows: of the update.
            kept: rows of the mini-batch that go through the decoder.
            num_tokens: of the whole mini-batch, rows left out included: what they add to the mean is 0.
            targets: of the update.
            totals: collects the figures of the step.
        """
        self.optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros(len(_SUMS), dtype=torch.float64)
        for batch in self.scorer.micro_batches(rows, kept, self._settings.micro_batch_rows):
            loss, parts = self._loss_sum(batch, targets, is_first=totals.steps == 0)
            torch.autograd.backward(loss / num_tokens)
            sums += parts.cpu()
        limit = self._settings.max_grad_norm or torch.inf
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, limit)
        if not (torch.isfinite(norm) and torch.isfinite(sums).all()):
            self.optimizer.zero_grad(set_to_none=True)
            return False
        self.optimizer.step()
        totals.add(sums, num_tokens, float(norm))
        return True

    def _loss_sum(self, batch: MicroBatch, targets: _Targets, *, is_first: bool) -> tuple[Tensor, Tensor]:
        """Sum of the token losses of a micro-batch, and the sums named in `_SUMS`, [len(_SUMS)] float64."""
        settings, correction = self._settings, self._config.offpolicy
        scores = self.scorer.score(batch, with_entropy=is_first or settings.entropy_coef > 0)
        at = torch.from_numpy(batch.token_index).to(targets.prox.device)
        if is_first:
            targets.prox[at] = scores.logprobs.detach()
            targets.entropies[at] = scores.entropy.detach() if scores.entropy is not None else torch.nan
        prox = targets.prox[at]
        policy = policy_loss(
            scores.logprobs, prox, targets.advantages[at], settings.clip_low, settings.clip_high, settings.clip_dual
        )
        weights = offpolicy_weights(prox, targets.behaviour[at], correction.correction, correction.cap)
        weighted = weights * policy.loss
        loss = weighted.sum()
        kl_sum = loss.new_zeros(())
        if targets.reference is not None:
            kl_sum = kl_estimate(scores.logprobs, targets.reference[at], settings.kl_estimator).sum()
            loss = loss + settings.kl_coef * kl_sum
        if settings.entropy_coef > 0 and scores.entropy is not None:
            loss = loss - settings.entropy_coef * scores.entropy.sum()
        drift = (prox - scores.logprobs).sum()
        parts = (loss, weighted.sum(), kl_sum, drift, policy.is_clipped.sum(), policy.is_dual_clipped.sum())
        return loss, torch.stack([part.detach().double() for part in parts])

    def _stats(self, targets: _Targets, totals: _Totals, learning_rate: float, rows_trained: int) -> UpdateStats:
        known = torch.isfinite(targets.prox)
        prox, behaviour = targets.prox[known], targets.behaviour[known]
        correction = self._config.offpolicy
        weights = offpolicy_weights(prox, behaviour, correction.correction, correction.cap)
        entropies = targets.entropies[known]
        difference = (prox - behaviour).abs()
        difference = difference[torch.isfinite(difference)]  # without correction behaviour may be missing
        return UpdateStats(
            **totals.means(),
            entropy=float(entropies.mean()) if len(entropies) else 0.0,
            grad_norm=totals.mean_norm(),
            effective_sample_size=effective_sample_fraction(weights),
            mismatch_mean=float(difference.mean()) if len(difference) else 0.0,
            mismatch_max=float(difference.max()) if len(difference) else 0.0,
            learning_rate=learning_rate,
            optimizer_steps=totals.steps,
            rows_trained=rows_trained,
        )


_SUMS = ("loss", "policy_loss", "kl", "approx_kl", "clip_fraction", "dual_clip_fraction")


class _Totals:
    """Sums over the optimizer steps of one update."""

    def __init__(self) -> None:
        self._sums = torch.zeros(len(_SUMS), dtype=torch.float64)
        self._tokens = 0
        self._norms: list[float] = []

    @property
    def steps(self) -> int:
        return len(self._norms)

    def add(self, sums: Tensor, num_tokens: int, grad_norm: float) -> None:
        self._sums += sums
        self._tokens += num_tokens
        self._norms.append(grad_norm)

    def means(self) -> dict[str, float]:
        """By the names in `_SUMS`, per token of all steps."""
        return dict(zip(_SUMS, (self._sums / max(1, self._tokens)).tolist(), strict=True))

    def mean_norm(self) -> float:
        return sum(self._norms) / max(1, self.steps)


class _Backup:
    """Copies of weights and optimizer state from before an update."""

    def __init__(self, parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
        self._parameters = parameters
        self._optimizer = optimizer
        self._values = [parameter.detach().clone() for parameter in parameters]
        self._state = copy.deepcopy(optimizer.state_dict())

    def restore(self) -> None:
        with torch.no_grad():
            for parameter, value in zip(self._parameters, self._values, strict=True):
                parameter.copy_(value)
        self._optimizer.load_state_dict(self._state)
        self._optimizer.zero_grad(set_to_none=True)
