"""A fixed panel, each task once, and what is reported of it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from actors import evaluation_main
from actors.evaluation import count_actions, run_evaluation
from async_agent_rl.config import Config, EnvSection, ModelSection
from async_agent_rl.errors import EXIT_BAD_INPUT, EXIT_OK, EXIT_RUN_FAILED, InputError, RunError
from async_agent_rl.reports import EvaluationJob, EvaluationReport, wilson_interval
from tests.tiny import build_tiny_model
from tools import evaluate

EVEN = "tests.tiny:EvenWorld"


def make_config(**options: object) -> Config:
    return Config(
        env=EnvSection(target=EVEN, options=options, max_steps=4),
        model=ModelSection(max_prompt_tokens=64, max_response_tokens=6),
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("evaluation"))


def test_every_task_of_the_panel_is_played_once_and_counted(model: Path) -> None:
    told: list[tuple[int, int]] = []
    config = make_config(steps=3)
    report = run_evaluation(str(model), config, "validation", 12, 1.0, 0, 1, lambda *at: told.append(at))
    assert told == [(done, 12) for done in range(1, 13)]
    assert report.n == len(report.wins) == 12
    assert report.success == sum(report.wins) / 12
    assert 0 < report.success < 1  # else this panel shows nothing
    assert (report.success_low, report.success_high) == wilson_interval(sum(report.wins), 12)
    assert report.score == pytest.approx(0.5 * report.success + 0.25 * (1 - report.success))
    assert report.episode_length == 3
    assert sum(report.actions.values()) == 36
    assert report.admissible == report.actions["even"] / 36
    assert report.format_ok == 1.0


def test_the_same_seed_gives_the_same_outcomes_and_another_one_others(model: Path) -> None:
    first, again, other = (
        run_evaluation(str(model), make_config(), "validation", 12, 1.0, seed, 1).wins for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_a_shorter_panel_is_the_beginning_of_a_longer_one(model: Path) -> None:
    whole = run_evaluation(str(model), make_config(), "test", 8, 1.0, 0, 1).wins
    assert run_evaluation(str(model), make_config(), "test", 3, 1.0, 0, 1).wins == whole[:3]


def test_injected_latency_does_not_slow_an_evaluation(model: Path) -> None:
    config = msgspec.structs.replace(
        make_config(), env=EnvSection(target=EVEN, options={}, latency="fixed:100", max_steps=4)
    )
    assert run_evaluation(str(model), config, "test", 2, 0.0, 0, 1).seconds < 50


@pytest.mark.parametrize("n", [0, 9])
def test_a_panel_of_another_size_is_refused_with_the_count(model: Path, n: int) -> None:
    with pytest.raises(InputError, match=f"n={n}: the test panel has 8 tasks"):
        run_evaluation(str(model), make_config(), "test", n, 0.0, 0, 1)


def test_a_lost_episode_is_no_zero(model: Path) -> None:
    with pytest.raises(RunError, match=r"test task 1 could not be played \(environment_error\)"):
        run_evaluation(str(model), make_config(broken=[1]), "test", 3, 0.0, 0, 1)


def test_actions_are_counted_by_the_word_before_the_bracket() -> None:
    actions = ["search[red shoes]", "click[buy now]", "click[ < prev ]", "", "[x]", "???", "left"]
    assert count_actions(actions) == {"click": 2, "search": 1, "left": 1, "other": 3}


def write_job(folder: Path, model: str, config: Config) -> tuple[Path, Path]:
    job = EvaluationJob(
        config=config, model_path=model, split="test", n=4, temperature=0.0, seed=0, threads=1, out=str(folder / "out")
    )
    path = folder / "job.json"
    path.write_bytes(msgspec.json.encode(job))
    return path, folder / "out"


def test_the_evaluation_process_writes_its_report(model: Path, tmp_path: Path) -> None:
    job, out = write_job(tmp_path, str(model), make_config())
    assert evaluation_main.main([str(job)]) == EXIT_OK
    assert msgspec.json.decode(out.read_bytes(), type=EvaluationReport).n == 4


@pytest.mark.parametrize(("broken", "path", "status"), [([], "/nowhere", EXIT_BAD_INPUT), ([0], "", EXIT_RUN_FAILED)])
def test_the_evaluation_process_ends_with_one_sentence(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: list[int], path: str, status: int
) -> None:
    job, out = write_job(tmp_path, path or str(model), make_config(broken=broken))
    assert evaluation_main.main([str(job)]) == status
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not out.exists()


def test_the_tool_prints_a_table_and_writes_json(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.json"
    limits = ["env.max_steps=4", "model.max_prompt_tokens=64", "model.max_response_tokens=6"]
    arguments = [str(model), "--panel", "test", "--temperature", "0", "--n", "5", "--json", str(out), "--threads", "1"]
    assert evaluate.main([*arguments, f"env={EVEN}", *limits]) == EXIT_OK
    shown = capsys.readouterr().out
    assert "test, first 5 tasks, each once, greedy, seed 0" in shown
    assert len(json.loads(out.read_text())["wins"]) == 5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["/nowhere"], "model.path=/nowhere: no such folder"),
        (["MODEL", "--n", "9", "--panel", "test"], "the test panel has 8 tasks"),
        (["MODEL", "env.no_such_key=1"], "env.no_such_key"),
        (["MODEL", "--temperature", "-1"], "--temperature -1.0"),
        (["MODEL", "--json", "/nowhere/out.json"], "its folder does not exist"),
    ],
)
def test_the_tool_refuses_bad_input_in_one_sentence(
    model: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    given = [str(model) if argument == "MODEL" else argument for argument in arguments]
    assert evaluate.main([*given, f"env={EVEN}"]) == EXIT_BAD_INPUT
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1
