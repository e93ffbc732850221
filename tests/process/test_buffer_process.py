"""The buffer role as a process of its own: it announces itself, ends when told, and names what stands in its way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from async_agent_rl import protocol
from async_agent_rl.buffer.main import address_path, wait_for_addresses
from async_agent_rl.config import BufferSection, Config
from async_agent_rl.role_main import read_failure
from async_agent_rl.roles import RoleSpec, write_role_spec
from async_agent_rl.transport.sockets import make_dealer

DEADLINE_S = 30.0


def start(run_dir: Path, port: int = 0) -> subprocess.Popen[str]:
    spec = RoleSpec(
        name="buffer",
        run_id="run-1",
        run_dir=str(run_dir),
        incarnation=0,
        config=Config(buffer=BufferSection(port=port)),
        num_train_tasks=10,
        launcher_pid=os.getpid(),
    )
    command = [sys.executable, "-m", "async_agent_rl.buffer.main", str(write_role_spec(spec))]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def buffer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = start(tmp_path)
    yield process
    process.kill()
    process.communicate(timeout=DEADLINE_S)


def test_it_serves_and_ends_with_status_0_when_terminated(tmp_path: Path, buffer: subprocess.Popen[str]) -> None:
    addresses = wait_for_addresses(tmp_path, DEADLINE_S, lambda: buffer.poll() is None)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = make_dealer(context, addresses.router, "learner")
    dealer.send(protocol.encode(protocol.Hello(role="learner", name="learner", run_id="run-1")))
    assert dealer.poll(5000)
    assert protocol.decode(dealer.recv()) == protocol.Welcome(version=0, incarnation=0)
    buffer.send_signal(signal.SIGTERM)
    assert dealer.poll(5000)
    assert isinstance(protocol.decode(dealer.recv()), protocol.Stop)
    assert buffer.wait(DEADLINE_S) == 0
    assert not address_path(tmp_path).exists()
    context.destroy(linger=0)
    events = [json.loads(line)["event"] for line in (tmp_path / "logs" / "buffer.jsonl").read_text().splitlines()]
    assert events[0] == "role_started"
    assert events[-2:] == ["buffer_stopped", "role_ended"]


def test_a_port_in_use_is_exit_status_2_and_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start(tmp_path, port)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    failure = read_failure(tmp_path, "buffer")
    assert failure is not None
    assert f"buffer.port={port}: cannot listen on 127.0.0.1:{port}" in failure.message
    assert "buffer.port=0" in errors
    assert "Traceback" not in errors
