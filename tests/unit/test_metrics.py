"""The line a person reads, and when it says that waiting longer buys nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec

from async_agent_rl.metrics import UpdateRecord, format_update, is_learner_bound, metrics_path, read_metrics


def record(version: int = 3, *, waited: float = 0.0, busy: float = 2.0, blocked: float = 0.0) -> UpdateRecord:
    return UpdateRecord(
        version=version,
        time_s=1.0,
        success=0.25,
        score=0.5,
        reward=2.5,
        episode_length=5.0,
        staleness_mean=1.5,
        staleness_max=2,
        groups_ready=1,
        groups_in_flight=7,
        rows=300,
        rows_trained=200,
        trajectories_per_s=10.0,
        rows_generated_per_s=100.0,
        tokens_generated=1000,
        rows_trained_per_s=150.0,
        learner_wait_s=waited,
        learner_busy_s=busy,
        actor_lease_wait_s=0.5,
        actor_env_wait_s=0.1,
        actor_busy_s=1.4,
        admission_blocked_s=blocked,
        format_ok=1.0,
        admissible=1.0,
        prompts_shortened=0.0,
        responses_cut=0.0,
        loss=0.0,
        policy_loss=0.0,
        kl=0.0,
        entropy=0.1,
        clip_fraction=0.0,
        grad_norm=0.1,
        effective_sample_size=1.0,
        logprob_mismatch=0.0,
        learning_rate=1e-3,
        optimizer_steps=5,
    )


def test_the_line_holds_what_a_person_asks_for() -> None:
    line = format_update([record()], 60, 2)
    for part in ("v03/60", "25.0%", "score 0.50", "len  5.0", "stale 1.5/2", "gen  100 rows/s", "train  150 rows/s"):
        assert part in line
    assert "\n" not in line


def test_actors_blocked_by_the_bound_while_the_learner_never_waits_are_reported() -> None:
    assert is_learner_bound([record(blocked=1.0)], 2)
    assert "buys nothing" in format_update([record(blocked=1.0)], 60, 2)


def test_a_learner_that_waits_or_a_bound_of_zero_is_not_reported() -> None:
    assert not is_learner_bound([record(blocked=1.0, waited=1.0)], 2)
    assert not is_learner_bound([record(blocked=1.0)], 0)
    assert not is_learner_bound([record(blocked=0.0)], 2)


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path: Path) -> None:
    whole = msgspec.json.encode(record(1)) + b"\n"
    metrics_path(tmp_path).write_bytes(whole + whole[:50])
    assert [found.version for found in read_metrics(tmp_path)] == [1]
