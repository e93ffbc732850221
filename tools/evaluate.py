"""Score any Hugging Face causal-LM folder on a fixed panel of tasks.

    python -m tools.evaluate configs/models/webshop_tiny --panel validation --temperature 0.4 --n 512

The test panel is for final numbers only: nothing may be tuned on it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from actors.evaluation import run_evaluation
from async_agent_rl.config_loading import DEFAULT_CONFIG, load_config
from async_agent_rl.errors import (
    EXIT_BAD_INPUT,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_RUN_FAILED,
    AsyncAgentRLError,
    InputError,
)
from async_agent_rl.reports import EvaluationReport

_PROGRESS_EVERY = 64


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    try:
        report = _evaluate(arguments)
        print(table(report))
        if arguments.json is not None:
            _write(Path(arguments.json), report)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except AsyncAgentRLError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_RUN_FAILED
    return EXIT_OK


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.evaluate", description="Score a Hugging Face causal-LM folder on a fixed panel of tasks."
    )
    parser.add_argument("model", metavar="MODEL", help="folder with config, tokenizer and safetensors")
    parser.add_argument("--panel", choices=("validation", "test"), default="validation")
    parser.add_argument("--temperature", type=float, default=0.4, help="0 = greedy (default: %(default)s)")
    parser.add_argument("--n", type=int, default=256, help="first N tasks of the panel (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the sampling noise (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0 = all cores (default)")
    parser.add_argument("--json", metavar="OUT", help="write the report there, with the outcome of every task")
    parser.add_argument("--config-name", default=DEFAULT_CONFIG, help="world and limits (default: %(default)s)")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="e.g. env.max_steps=10")
    return parser.parse_intermixed_args(argv)


def _evaluate(arguments: argparse.Namespace) -> EvaluationReport:
    if arguments.temperature < 0:
        raise InputError(f"--temperature {arguments.temperature}: must not be negative (0 = greedy)")
    if arguments.threads < 0:
        raise InputError(f"--threads {arguments.threads}: must not be negative (0 = all cores)")
    if arguments.json is not None and not Path(arguments.json).resolve().parent.is_dir():
        raise InputError(f"--json {arguments.json}: its folder does not exist")
    return run_evaluation(
        arguments.model,
        load_config(arguments.config_name, arguments.overrides),
        arguments.panel,
        arguments.n,
        arguments.temperature,
        arguments.seed,
        arguments.threads,
        _show_progress if sys.stderr.isatty() else None,
    )


def _show_progress(done: int, total: int) -> None:
    if done == total:
        print(f"\r{' ' * 40}\r", end="", file=sys.stderr)
    elif done % _PROGRESS_EVERY == 0:
        print(f"\r{done} of {total} episodes", end="", file=sys.stderr, flush=True)


def _write(path: Path, report: EvaluationReport) -> None:
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    except OSError as error:
        raise InputError(f"--json {path}: cannot be written: {error.strerror}") from error


def table(report: EvaluationReport) -> str:
    """The report for people."""
    how = "greedy" if report.temperature == 0 else f"T = {report.temperature:g}"
    total = sum(report.actions.values())
    actions = ", ".join(f"{kind} {count} ({count / total:.0%})" for kind, count in report.actions.items())
    lines = [
        ("model", report.model),
        ("panel", f"{report.split}, first {report.n} tasks, each once, {how}, seed {report.seed}"),
        ("success", f"{report.success:.1%}   95 % interval {report.success_low:.1%} to {report.success_high:.1%}"),
        ("task score", f"{report.score:.3f}   mean, 0 to 1"),
        ("length", f"{report.episode_length:.2f}   steps, mean"),
        ("valid format", f"{report.format_ok:.1%}   of steps"),
        ("admissible", f"{report.admissible:.1%}   of steps"),
        ("actions", actions),
        ("time", f"{report.seconds:.1f} s   {report.n / report.seconds:.1f} episodes/s"),
    ]
    return "\n".join(f"{name:13s} {value}" for name, value in lines)


if __name__ == "__main__":
    sys.exit(main())
