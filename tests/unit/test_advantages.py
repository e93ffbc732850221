"""GiGPO advantages against the published golden numbers and a slow reference.

Run: python -m pytest tests/unit/test_advantages.py
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import Any

import numpy as np
import pytest
import torch

from async_agent_rl.config import GigpoSection
from learner.advantages import STD_EPSILON, Advantages, discounted_returns, gigpo_advantages, number_keys

VERL_AGENT: dict[str, Any] = {"episode_stats": "rows", "penalty": "post_return", "singleton_episode": "raw"}


@dataclasses.dataclass(frozen=True)
class Row:
    group: int
    trajectory: int
    step: int
    reward: float
    invalid: bool
    anchor: str


# Trajectory X wins in three steps, Y loses in two, its second action being invalid.
GOLDEN = [
    Row(0, 0, 0, 0.0, False, "s0"),
    Row(0, 0, 1, 0.0, False, "s1"),
    Row(0, 0, 2, 10.0, False, "s2"),
    Row(0, 1, 0, 0.0, False, "s0"),
    Row(0, 1, 1, 0.0, True, "s1"),
]


def advantages_of(
    rows: list[Row], settings: GigpoSection, penalty: float = 0.1, dtype: Any = torch.float64
) -> Advantages:
    keys, _ = number_keys([row.group for row in rows], [row.anchor for row in rows])
    return gigpo_advantages(
        rewards=torch.tensor([row.reward for row in rows], dtype=dtype),
        invalid=torch.tensor([row.invalid for row in rows]),
        groups=torch.tensor([row.group for row in rows]),
        trajectories=torch.tensor([row.trajectory for row in rows]),
        steps=torch.tensor([row.step for row in rows]),
        keys=keys,
        settings=settings,
        penalty=penalty,
    )


def approx(values: list[float]) -> Any:
    return pytest.approx(values, abs=2e-6)


def test_a_discounted_return_looks_only_ahead() -> None:
    got = discounted_returns(torch.tensor([[0.0, 0.0, 10.0], [1.0, 0.0, 0.0]], dtype=torch.float64), gamma=0.95)
    assert got[0].tolist() == approx([9.025, 9.5, 10.0])
    assert got[1].tolist() == [1.0, 0.0, 0.0]


def test_a_discount_of_zero_keeps_only_the_step_itself() -> None:
    got = discounted_returns(torch.tensor([[1.0, 2.0, 4.0]]), gamma=0.0)
    assert got.tolist() == [[1.0, 2.0, 4.0]]


def test_golden_rows_profile_with_means() -> None:
    got = advantages_of(GOLDEN, GigpoSection(mode="mean_norm", **VERL_AGENT))
    assert got.returns.tolist() == approx([9.025, 9.5, 10.0, 0.0, -0.1])
    assert got.episode.tolist() == approx([4.02, 4.02, 4.02, -5.98, -6.08])
    assert got.step.tolist() == approx([4.5125, 4.8, 0.0, -4.5125, -4.8])
    assert got.total.tolist() == approx([8.5325, 8.82, 4.02, -10.4925, -10.88])


def test_golden_rows_profile_with_standard_deviations() -> None:
    got = advantages_of(GOLDEN, GigpoSection(mode="mean_std_norm", **VERL_AGENT))
    assert got.episode.tolist() == approx([0.7302815, 0.7302815, 0.7302815, -1.0863392, -1.1045054])
    assert got.step.tolist() == approx([0.7071067, 0.7071067, 0.0, -0.7071067, -0.7071067])
    assert got.total.tolist() == approx([1.4373882, 1.4373882, 0.7302815, -1.7934459, -1.8116121])


def test_golden_trajectory_statistics_with_the_penalty_after_the_return() -> None:
    settings = GigpoSection(episode_stats="trajectory", penalty="post_return", singleton_episode="raw")
    assert advantages_of(GOLDEN, settings).episode.tolist() == approx([5.0, 5.0, 5.0, -5.0, -5.1])
    settings = GigpoSection(
        episode_stats="trajectory", penalty="post_return", singleton_episode="raw", mode="mean_std_norm"
    )
    std = 7.0710678
    assert advantages_of(GOLDEN, settings).episode.tolist() == approx([5 / std] * 3 + [-5 / std, -5.1 / std])


def test_a_copied_row_counts_twice_in_row_statistics() -> None:
    got = advantages_of([*GOLDEN, GOLDEN[4]], GigpoSection(mode="mean_norm", **VERL_AGENT))
    assert got.episode[:3].tolist() == approx([5.0333333] * 3)
    assert got.step.tolist() == approx([4.5125, 6.4, 0.0, -4.5125, -3.2, -3.2])
    assert got.returns.tolist() == approx([9.025, 9.5, 10.0, 0.0, -0.1, -0.1])


def test_by_default_a_penalty_is_part_of_the_return_and_of_the_episode() -> None:
    got = advantages_of(GOLDEN, GigpoSection())
    # Y: rewards 0, -0.1; return of its first step -0.095; both rows share the episode's score -0.1.
    assert got.returns.tolist() == approx([9.025, 9.5, 10.0, -0.095, -0.1])
    assert got.episode.tolist() == approx([5.05, 5.05, 5.05, -5.05, -5.05])
    assert got.step.tolist() == approx([4.56, 4.8, 0.0, -4.56, -4.8])


def test_by_default_long_episodes_weigh_no_more_than_short_ones() -> None:
    rows = [Row(0, 0, 0, 10.0, False, "a")] + [Row(0, 1, step, 0.0, False, f"b{step}") for step in range(9)]
    assert advantages_of(rows, GigpoSection()).episode.tolist() == approx([5.0] + [-5.0] * 9)
    assert advantages_of(rows, GigpoSection(episode_stats="rows")).episode.tolist() == approx([9.0] + [-1.0] * 9)


def test_the_step_term_is_weighted() -> None:
    got = advantages_of(GOLDEN, GigpoSection(step_weight=0.5))
    assert torch.equal(got.total, got.episode + 0.5 * got.step)


def test_the_only_trajectory_of_a_group_teaches_nothing_unless_asked_for_verl_agents_rule() -> None:
    rows = [Row(0, 0, 0, 10.0, False, "a")]
    for mode in ("mean_norm", "mean_std_norm"):
        assert advantages_of(rows, GigpoSection(mode=mode)).total.tolist() == [0.0]
        raw = GigpoSection(mode=mode, singleton_episode="raw")
        assert advantages_of(rows, raw).total.tolist() == [10.0]


def test_a_state_seen_once_teaches_nothing_in_either_profile() -> None:
    for mode in ("mean_norm", "mean_std_norm"):
        assert advantages_of(GOLDEN, GigpoSection(mode=mode, **VERL_AGENT)).step[2] == 0.0
        assert advantages_of(GOLDEN, GigpoSection(mode=mode)).step[2] == 0.0


def test_equal_rewards_teach_nothing() -> None:
    rows = [Row(0, member, step, 0.0, False, f"s{step}") for member in range(8) for step in range(3)]
    for mode in ("mean_norm", "mean_std_norm"):
        assert not advantages_of(rows, GigpoSection(mode=mode)).total.any()


def test_equal_states_of_different_groups_are_not_compared() -> None:
    other = [dataclasses.replace(row, group=1, trajectory=row.trajectory + 2, reward=-row.reward) for row in GOLDEN]
    together = advantages_of(GOLDEN + other, GigpoSection()).total
    apart = torch.cat([advantages_of(GOLDEN, GigpoSection()).total, advantages_of(other, GigpoSection()).total])
    assert torch.equal(together, apart)


def test_keys_are_numbered_per_group_and_state() -> None:
    ids, count = number_keys([0, 0, 1, 1, 0], ["a", "b", "a", "a", "a"])
    assert ids.tolist() == [0, 1, 2, 2, 0]
    assert count == 3


def test_results_have_the_dtype_of_the_rewards() -> None:
    got = advantages_of(GOLDEN, GigpoSection(), dtype=torch.float32)
    assert {got.total.dtype, got.episode.dtype, got.step.dtype, got.returns.dtype} == {torch.float32}


# --- slow reference -------------------------------------------------------------------------------------------------


def reference(rows: list[Row], settings: GigpoSection, penalty: float) -> list[float]:
    """Row by row and as written in the definitions; no tensors."""
    fine = [penalty * row.invalid for row in rows]
    paid = [row.reward - (fine[i] if settings.penalty == "in_reward" else 0.0) for i, row in enumerate(rows)]

    def total_reward(i: int) -> float:
        return sum(paid[j] for j in range(len(rows)) if rows[j].trajectory == rows[i].trajectory)

    def go_on(i: int) -> float:
        later = [
            j for j in range(len(rows)) if rows[j].trajectory == rows[i].trajectory and rows[j].step >= rows[i].step
        ]
        return sum(settings.gamma ** (rows[j].step - rows[i].step) * paid[j] for j in later)

    scores = [total_reward(i) for i in range(len(rows))]
    returns = [go_on(i) for i in range(len(rows))]
    if settings.penalty == "post_return":
        scores = [score - fine[i] for i, score in enumerate(scores)]
        returns = [value - fine[i] for i, value in enumerate(returns)]

    def compare(value: float, sample: list[float], *, raw: bool) -> float:
        if len(sample) == 1:
            return value if raw else 0.0
        centered = value - math.fsum(sample) / len(sample)
        return centered if settings.mode == "mean_norm" else centered / (statistics.stdev(sample) + STD_EPSILON)

    result = []
    for i, row in enumerate(rows):
        peers = [j for j in range(len(rows)) if rows[j].group == row.group]
        if settings.episode_stats == "trajectory":
            firsts = {
                t: min((rows[j].step, j) for j in peers if rows[j].trajectory == t)[1]
                for t in {rows[j].trajectory for j in peers}
            }
            sample = [scores[j] for j in firsts.values()]
        else:
            sample = [scores[j] for j in peers]
        episode = compare(scores[i], sample, raw=settings.singleton_episode == "raw")
        same_state = [returns[j] for j in peers if rows[j].anchor == row.anchor]
        result.append(episode + settings.step_weight * compare(returns[i], same_state, raw=False))
    return result


def random_rows(seed: int, num_groups: int = 4, size: int = 5) -> list[Row]:
    rng = np.random.default_rng(seed)
    rows = []
    for trajectory in range(num_groups * size):
        for step in range(int(rng.integers(1, 9))):
            reward = float(rng.choice([0.0, 0.0, 1.0, 10.0, rng.normal()]))
            invalid = bool(rng.random() < 0.3)
            rows.append(Row(trajectory // size, trajectory, step, reward, invalid, f"s{rng.integers(0, 6)}"))
    return rows


ALL_SETTINGS = [
    GigpoSection(mode=mode, episode_stats=stats, penalty=penalty, singleton_episode=single, gamma=0.9, step_weight=0.7)
    for mode in ("mean_norm", "mean_std_norm")
    for stats in ("trajectory", "rows")
    for penalty in ("in_reward", "post_return")
    for single in ("zero", "raw")
]


@pytest.mark.parametrize(
    "settings", ALL_SETTINGS, ids=lambda s: f"{s.mode}-{s.episode_stats}-{s.penalty}-{s.singleton_episode}"
)
def test_vectorised_equals_the_slow_reference(settings: GigpoSection) -> None:
    for seed, (num_groups, size) in enumerate([(4, 5), (3, 1), (1, 8)]):
        rows = random_rows(seed, num_groups, size)
        got = advantages_of(rows, settings, penalty=0.25).total
        assert got.tolist() == pytest.approx(reference(rows, settings, 0.25), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("settings", ALL_SETTINGS[::3])
def test_the_order_of_the_rows_does_not_matter(settings: GigpoSection) -> None:
    rows = random_rows(seed=11)
    order = np.random.default_rng(5).permutation(len(rows))
    straight = advantages_of(rows, settings).total
    shuffled = advantages_of([rows[i] for i in order], settings).total
    assert torch.allclose(shuffled, straight[torch.from_numpy(order)], rtol=1e-9, atol=1e-12)
