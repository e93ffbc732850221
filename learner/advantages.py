"""GiGPO advantages: how much better a step was than its group's episodes and than steps taken in the same state.

Pure functions of tensors. Knows nothing of tokens, models, messages or where the rows came from; a *row* is one
environment step of one trajectory. Source: arXiv 2505.10978 (Eq. 3 to 8), with switches for what the authors' code
does differently (`gigpo.*` of the configuration).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from async_agent_rl.config import GigpoSection

STD_EPSILON = 1e-6
"""Added to a standard deviation before dividing by it; a group of equal values then gives 0."""


@dataclasses.dataclass(frozen=True)
class Advantages:
    """One value per row each; all [N], in the dtype of the rewards."""

    total: Tensor
    """episode + step_weight * step."""
    episode: Tensor
    """A^E: the trajectory's score against its group."""
    step: Tensor
    """A^S, not yet weighted: the discounted return against rows of the same group in the same state."""
    returns: Tensor
    """Discounted sum of this row's reward and all later ones of its trajectory, as compared in `step`."""


def number_keys(groups: Sequence[int], anchors: Sequence[str]) -> tuple[Tensor, int]:
    """Number the distinct (group, anchor) pairs in order of appearance.

    Args:
        groups: [N] group of each row.
        anchors: [N] state of each row; equal strings mean the same state, but only inside one group.

    Returns:
        [N] int64 in [0, K), and K.
    """
    numbers: dict[tuple[int, str], int] = {}
    ids = [numbers.setdefault(pair, len(numbers)) for pair in zip(groups, anchors, strict=True)]
    return torch.tensor(ids, dtype=torch.int64), len(numbers)


def gigpo_advantages(
    rewards: Tensor,
    invalid: Tensor,
    groups: Tensor,
    trajectories: Tensor,
    steps: Tensor,
    keys: Tensor,
    settings: GigpoSection,
    penalty: float,
) -> Advantages:
    """Advantage of each row; computed in float64, independent of the order of the rows.

    Rows may repeat a (trajectory, step): a copy changes no return, but counts again wherever rows are counted.

    Args:
        rewards: [N] float32 or float64, training reward of the step, without penalty.
        invalid: [N] bool, the step is to be penalized.
        groups: [N] int64 >= 0.
        trajectories: [N] int64 >= 0; a trajectory lies in one group.
        steps: [N] int64 >= 0, the time order inside a trajectory.
        keys: [N] int64 >= 0 from `number_keys`.
        settings: `gigpo` section of the configuration.
        penalty: c, taken off once per invalid row.
    """
    wide = rewards.double()
    fines = penalty * invalid.double()
    table = _EpisodeTable.of(groups, trajectories, steps)
    in_reward = settings.penalty == "in_reward"
    paid = wide - fines if in_reward else wide
    by_step = table.spread(paid)
    returns = table.gather(discounted_returns(by_step, settings.gamma))
    scores = by_step.sum(dim=1)[table.row_of]
    if not in_reward:  # the penalty then stays with its own row: not discounted, not shared with the trajectory
        returns = returns - fines
        scores = scores - fines

    # A score without its peers is compared with nothing: mean 0 (raw) or itself (zero).
    raw = settings.singleton_episode == "raw"
    sample, sample_groups = (scores, groups) if settings.episode_stats == "rows" else table.first_of_each(scores)
    episode = _normalize(scores, groups, sample, sample_groups, settings.mode, raw_singletons=raw)
    step = _normalize(returns, keys, returns, keys, settings.mode, raw_singletons=False)
    total = episode + settings.step_weight * step
    dtype = rewards.dtype
    return Advantages(total.to(dtype), episode.to(dtype), step.to(dtype), returns.to(dtype))


def discounted_returns(rewards: Tensor, gamma: float) -> Tensor:
    """Return-to-go G_t = r_t + gamma * G_{t+1}; nothing is assumed after the last column.

    Args:
        rewards: [M, T] one trajectory a row, 0 where it has ended.
        gamma: discount in [0, 1].

    Returns:
        [M, T], same dtype.
    """
    age = torch.arange(rewards.shape[1], device=rewards.device, dtype=rewards.dtype)
    power = age[:, None] - age[None, :]  # entry (k, t): reward k is discounted k - t times
    weights = torch.where(power >= 0, torch.pow(gamma, power.clamp(min=0)), torch.zeros_like(power))
    return rewards @ weights


@dataclasses.dataclass(frozen=True)
class _EpisodeTable:
    """Where each row stands in the matrix of M trajectories by T steps."""

    row_of: Tensor
    """[N] int64 in [0, M)."""
    steps: Tensor
    """[N] int64 in [0, T)."""
    group_of: Tensor
    """[M] int64."""
    length: int

    @classmethod
    def of(cls, groups: Tensor, trajectories: Tensor, steps: Tensor) -> _EpisodeTable:
        names, row_of = torch.unique(trajectories, return_inverse=True)
        group_of = groups.new_zeros(len(names)).scatter_(0, row_of, groups)
        return cls(row_of, steps, group_of, int(steps.max()) + 1)

    def spread(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """[N] -> [M, T]; copies of a row fall on the same place."""
        table = values.new_full((len(self.group_of), self.length), fill)
        table[self.row_of, self.steps] = values
        return table

    def gather(self, table: Tensor) -> Tensor:
        """[M, T] -> [N]."""
        return table[self.row_of, self.steps]

    def first_of_each(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Each trajectory's value at its earliest row, and its group: [M], [M]."""
        present = self.spread(torch.ones_like(values))
        first = present.argmax(dim=1, keepdim=True)
        return self.spread(values).gather(1, first).squeeze(1), self.group_of


def _normalize(
    values: Tensor, keys: Tensor, sample: Tensor, sample_keys: Tensor, mode: str, raw_singletons: bool
) -> Tensor:
    """Values [N] minus the mean (and over the std) of those sample values [S] that share their key.

    The standard deviation has Bessel's correction. A key with one sample value gives 0, or, with `raw_singletons`,
    the value itself.
    """
    num_keys = int(torch.maximum(keys.max(), sample_keys.max())) + 1
    counts = sample.new_zeros(num_keys).index_add_(0, sample_keys, torch.ones_like(sample))
    mean = sample.new_zeros(num_keys).index_add_(0, sample_keys, sample) / counts.clamp(min=1)
    alone = counts == 1
    if raw_singletons:
        mean = torch.where(alone, torch.zeros_like(mean), mean)
    centered = values - mean[keys]
    if not raw_singletons:
        centered = torch.where(alone[keys], torch.zeros_like(centered), centered)
    if mode == "mean_norm":
        return centered
    squares = sample.new_zeros(num_keys).index_add_(0, sample_keys, (sample - mean[sample_keys]) ** 2)
    std = (squares / (counts - 1).clamp(min=1)).sqrt()
    return torch.where(alone[keys], centered, centered / (std[keys] + STD_EPSILON))
