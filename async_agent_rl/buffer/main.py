"""The buffer role: `python -m async_agent_rl.buffer.main ROLE_FILE`.

Binds, tells where it listens in <run_dir>/roles/buffer.address.json, serves until Stop or SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog

from async_agent_rl.buffer.broker import Broker
from async_agent_rl.buffer.server import serve
from async_agent_rl.errors import RunError
from async_agent_rl.role_main import run_role
from async_agent_rl.roles import RoleSpec
from async_agent_rl.transport.sockets import ZmqMailbox

log = structlog.get_logger()

_POLL_S = 0.02


class BufferAddresses(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the buffer listens, e.g. tcp://127.0.0.1:41001."""

    router: str
    hints: str


def address_path(run_dir: str | Path) -> Path:
    return Path(run_dir) / "roles" / "buffer.address.json"


def wait_for_addresses(run_dir: str | Path, deadline_s: float, is_alive: Callable[[], bool]) -> BufferAddresses:
    """Wait until the buffer listens.

    Args:
        deadline_s: seconds from now.
        is_alive: whether the buffer's process still runs.

    Raises:
        RunError: it ended, or did not listen in time, or its address file is damaged.
    """
    path = address_path(run_dir)
    end_s = time.monotonic() + deadline_s
    while not path.exists():
        if not is_alive():
            raise RunError("the buffer ended before it listened; its cause is in roles/buffer.error.json and its log")
        if time.monotonic() > end_s:
            raise RunError(f"the buffer did not listen within {deadline_s:g} s")
        time.sleep(_POLL_S)
    try:
        return msgspec.json.decode(path.read_bytes(), type=BufferAddresses)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RunError(f"the buffer's address file {path} is damaged: {error}") from error


def main(argv: Sequence[str] | None = None) -> int:
    return run_role(sys.argv[1:] if argv is None else argv, _body)


def _body(spec: RoleSpec, stop: threading.Event) -> None:
    path = address_path(spec.run_dir)
    path.unlink(missing_ok=True)  # left by an earlier life of this run
    mailbox = ZmqMailbox(spec.config.buffer.host, spec.config.buffer.port)
    try:
        _write_addresses(path, BufferAddresses(router=mailbox.address, hints=mailbox.hint_address))
        log.info("buffer_listens", router=mailbox.address, hints=mailbox.hint_address)
        asyncio.run(serve(Broker(spec), mailbox, stop))
    finally:
        mailbox.close()
        path.unlink(missing_ok=True)


def _write_addresses(path: Path, addresses: BufferAddresses) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.encode(addresses))
    os.replace(temporary, path)


if __name__ == "__main__":
    sys.exit(main())
