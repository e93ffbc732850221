"""Role processes on this machine: started in their own process groups, watched, and ended without leftovers.

Knows nothing of what the roles do or of how they talk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from async_agent_rl.errors import EXIT_OK
from async_agent_rl.layout import project_root

_STDERR_TAIL_BYTES = 4000


@dataclasses.dataclass
class RoleProcess:
    """One role."""

    name: str
    process: subprocess.Popen[bytes]
    stderr_path: Path

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def stderr_tail(self) -> str:
        """The last lines the role wrote to stderr."""
        try:
            data = self.stderr_path.read_bytes()[-_STDERR_TAIL_BYTES:]
        except OSError:
            return ""
        return data.decode(errors="replace").strip()

    def describe_end(self) -> str:
        code = self.exit_code
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"ended with status {code}"


class LocalCluster:
    """The processes of one run. Every process started here is gone after `end_all`."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._roles: list[RoleProcess] = []
        self._stderr: list[IO[bytes]] = []

    @property
    def roles(self) -> list[RoleProcess]:
        return list(self._roles)

    def start(self, name: str, module: str, job_file: Path, threads: int) -> RoleProcess:
        """Start `python -m MODULE JOB_FILE`.

        Args:
            name: of the role; its stderr goes to <run_dir>/logs/<name>.stderr.
            module: looked up like any module; the project's folder is on the path.
            job_file: its only argument.
            threads: torch threads, also for OpenMP; 0 leaves the libraries' default.
        """
        stderr_path = self._run_dir / "logs" / f"{name}.stderr"
        stderr_path.parent.mkdir(parents=True, exist_ok=True)
        stderr = stderr_path.open("ab")
        self._stderr.append(stderr)
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(job_file)],
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            start_new_session=True,  # its own process group: a kill takes its children along, Ctrl-C does not reach it
            env=_role_environment(os.environ, threads),
        )
        role = RoleProcess(name, process, stderr_path)
        self._roles.append(role)
        return role

    def failed(self) -> RoleProcess | None:
        """A role that ended badly, if any; one with a status of its own before one that was killed."""
        ended = [role for role in self._roles if role.exit_code not in (None, EXIT_OK)]
        return min(ended, key=lambda role: (role.exit_code or 0) < 0, default=None)

    def wait(self, roles: list[RoleProcess], timeout_s: float) -> bool:
        """Wait until all of them have ended; False when the time is up first."""
        deadline = time.monotonic() + timeout_s
        for role in roles:
            try:
                role.process.wait(max(deadline - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                return False
        return True

    def terminate(self, roles: list[RoleProcess], timeout_s: float) -> bool:
        """Ask them to end (SIGTERM) and wait."""
        for role in roles:
            if role.exit_code is None:
                role.process.terminate()
        return self.wait(roles, timeout_s)

    def end_all(self, timeout_s: float = 2.0) -> None:
        """End every process of the run: politely first, then its whole process group by force."""
        self.terminate(self._roles, timeout_s)
        for role in self._roles:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(role.process.pid, signal.SIGKILL)
            role.process.wait()
        for stderr in self._stderr:
            stderr.close()
        self._stderr.clear()


def _role_environment(base: Mapping[str, str], threads: int) -> dict[str, str]:
    environment = dict(base)
    path = [str(project_root()), *filter(None, [base.get("PYTHONPATH", "")])]
    environment |= {
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if threads:
        environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return environment
