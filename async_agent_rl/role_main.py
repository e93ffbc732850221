"""How every role process starts and ends: its file, its log, its signals, its exit status and the cause it leaves.

Knows nothing of what a role does.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec
import structlog

from async_agent_rl import runlog
from async_agent_rl.errors import (
    EXIT_BAD_INPUT,
    EXIT_OK,
    EXIT_RUN_FAILED,
    AsyncAgentRLError,
    InputError,
)
from async_agent_rl.roles import RoleSpec, read_role_spec

log = structlog.get_logger()
_PARENT_POLL_S = 0.5
_PR_SET_PDEATHSIG = 1


class RoleFailure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a role ended, as it leaves it in <run_dir>/roles/<name>.error.json for the launcher."""

    name: str
    kind: str
    """Name of the exception's class."""
    message: str
    exit_code: int
    trace: str = ""


def failure_path(run_dir: str | Path, name: str) -> Path:
    return Path(run_dir) / "roles" / f"{name}.error.json"


def read_failure(run_dir: str | Path, name: str) -> RoleFailure | None:
    """The cause a role left, or None when it left none (it was killed) or a broken one (killed while writing)."""
    try:
        return msgspec.json.decode(failure_path(run_dir, name).read_bytes(), type=RoleFailure)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return None


def run_role(argv: Sequence[str], body: Callable[[RoleSpec, threading.Event], None]) -> int:
    """Run one role to its end and return the process's exit status.

    Args:
        argv: one argument, the role file.
        body: does the work; must return soon after the event is set (SIGTERM, or Ctrl-C at the launcher).
    """
    if len(argv) != 1:
        sys.stderr.write("usage: python -m MODULE ROLE_FILE (role files are written by async_agent_rl.launch)\n")
        return EXIT_BAD_INPUT
    faulthandler.enable()
    try:
        spec = read_role_spec(argv[0])
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_BAD_INPUT
    runlog.configure(spec.run_dir, spec.name, spec.config.run.log_level)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the launcher, which ends the roles in order
    if spec.launcher_pid:
        watch_launcher(spec.launcher_pid)
    log.info("role_started", pid=os.getpid())
    try:
        body(spec, stop)
    except Exception as error:  # noqa: BLE001 - the last line of defence: any cause must reach the launcher by name
        return _leave_cause(spec, error)
    log.info("role_ended")
    return EXIT_OK


def _leave_cause(spec: RoleSpec, error: Exception) -> int:
    code = EXIT_BAD_INPUT if isinstance(error, InputError) else EXIT_RUN_FAILED
    known = isinstance(error, AsyncAgentRLError)
    failure = RoleFailure(
        name=spec.name,
        kind=type(error).__name__,
        message=str(error) or type(error).__name__,
        exit_code=code,
        trace="" if known else "".join(traceback.format_exception(error)),
    )
    sys.stderr.write(f"{spec.name}: {failure.kind}: {failure.message}\n{failure.trace}")
    try:
        failure_path(spec.run_dir, spec.name).write_bytes(msgspec.json.encode(failure))
        log.error("role_failed", kind=failure.kind, message=failure.message, trace=failure.trace)
    except OSError as disk_error:  # a full disk must not hide the cause: stderr still has it
        sys.stderr.write(f"{spec.name}: the cause could not be written: {disk_error}\n")
    return code


def leave(status: int) -> NoReturn:
    """End the process at once, after `main` has let go of everything.

    The interpreter's own teardown of torch, transformers and spaCy takes seconds on a busy machine, longer than a role
    may take to stop.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def watch_launcher(launcher_pid: int) -> None:
    """From now on this process ends when the launcher is gone, however that one died: no orphan may outlive a run.

    On Linux the kernel sees to it, even for a process that is stopped; a thread does elsewhere.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_die_with, args=(launcher_pid,), name="parent-watch", daemon=True).start()


def _die_with(launcher_pid: int) -> None:
    """End this process when the launcher is gone, however it died: no orphan may outlive a run."""
    wait = threading.Event()
    while os.getppid() == launcher_pid:
        wait.wait(_PARENT_POLL_S)
    os._exit(EXIT_RUN_FAILED)
