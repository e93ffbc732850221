"""Tokens are drawn from the distribution whose log-probs are reported, with noise that belongs to the row."""

from __future__ import annotations

import math

import numpy as np
import torch

from actors.engines.sampling import choose_tokens, row_uniforms
from async_agent_rl.policy import GenerationRequest

QUARTERS = torch.tensor([0.25, 0.5, 0.25]).log()


def draw(logits: torch.Tensor, temperature: float, uniform: float) -> tuple[int, float]:
    tokens, logprobs = choose_tokens(
        logits[None], torch.tensor([temperature]), torch.tensor([uniform], dtype=torch.float64)
    )
    return int(tokens), float(logprobs)


def request(seed: int, temperature: float = 1.0) -> GenerationRequest:
    ids = np.array([1], dtype=np.int32)
    return GenerationRequest(prompt_ids=ids, order=(0,), seed=seed, temperature=temperature, max_tokens=4)


def test_a_uniform_number_picks_the_token_whose_share_of_the_line_it_falls_into() -> None:
    assert [draw(QUARTERS, 1.0, u)[0] for u in (0.0, 0.24, 0.26, 0.74, 0.76, 0.999)] == [0, 0, 1, 1, 2, 2]


def test_the_reported_log_prob_is_that_of_the_tempered_distribution() -> None:
    token, logprob = draw(QUARTERS, 0.5, 0.5)
    assert token == 1
    assert math.isclose(logprob, math.log(0.5**2 / (0.25**2 + 0.5**2 + 0.25**2)), rel_tol=1e-6)


def test_greedy_takes_the_best_token_and_reports_the_untempered_log_prob() -> None:
    token, logprob = draw(QUARTERS, 0.0, 0.99)
    assert token == 1
    assert math.isclose(logprob, math.log(0.5), rel_tol=1e-6)


def test_greedy_and_sampled_rows_share_a_batch() -> None:
    uniforms = torch.tensor([0.99, 0.99], dtype=torch.float64)
    tokens, _ = choose_tokens(torch.stack([QUARTERS, QUARTERS]), torch.tensor([0.0, 1.0]), uniforms)
    assert tokens.tolist() == [1, 2]


def test_a_token_without_probability_is_never_drawn() -> None:
    logits = torch.tensor([float("-inf"), 0.0, float("-inf")])
    largest = float(np.nextafter(1.0, 0.0))
    assert [draw(logits, 1.0, u)[0] for u in (0.0, 0.5, largest)] == [1, 1, 1]


def test_shares_of_drawn_tokens_approach_the_probabilities() -> None:
    uniforms = torch.from_numpy(np.random.default_rng(0).random(20_000))
    tokens, _ = choose_tokens(QUARTERS.expand(20_000, 3), torch.ones(20_000), uniforms)
    shares = torch.bincount(tokens, minlength=3) / 20_000
    assert torch.allclose(shares, torch.tensor([0.25, 0.5, 0.25]), atol=0.015)


def test_noise_of_a_row_depends_on_its_seed_alone() -> None:
    together = row_uniforms([request(5), request(6)], num_tokens=9)
    alone = row_uniforms([request(6)], num_tokens=4)
    assert together[1, :4].tolist() == alone[0].tolist()
    assert together[0, :4].tolist() != alone[0].tolist()
