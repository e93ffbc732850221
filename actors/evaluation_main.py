"""The evaluation process: `python -m actors.evaluation_main JOB_FILE`.

Reads an EvaluationJob, writes an EvaluationReport. Bad input and failures end it with the project's exit statuses and
one sentence on stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from actors.evaluation import run_evaluation
from async_agent_rl.errors import EXIT_BAD_INPUT, EXIT_OK, EXIT_RUN_FAILED, AsyncAgentRLError, InputError
from async_agent_rl.reports import EvaluationJob
from async_agent_rl.role_main import leave, watch_launcher


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else list(argv)
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m actors.evaluation_main JOB_FILE (for people: python -m tools.evaluate)\n")
        return EXIT_BAD_INPUT
    try:
        job = _read_job(Path(arguments[0]))
        if job.launcher_pid:
            watch_launcher(job.launcher_pid)
        _run(job)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_BAD_INPUT
    except (AsyncAgentRLError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_RUN_FAILED
    return EXIT_OK


def _read_job(path: Path) -> EvaluationJob:
    try:
        return msgspec.json.decode(path.read_bytes(), type=EvaluationJob)
    except OSError as error:
        raise InputError(f"evaluation job {path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InputError(f"evaluation job {path} is damaged: {error}") from error


def _run(job: EvaluationJob) -> None:
    report = run_evaluation(job.model_path, job.config, job.split, job.n, job.temperature, job.seed, job.threads)
    out = Path(job.out)
    temporary = out.with_name(f".{out.name}.tmp-{os.getpid()}")
    temporary.write_bytes(msgspec.json.encode(report))
    temporary.rename(out)


if __name__ == "__main__":
    leave(main())
