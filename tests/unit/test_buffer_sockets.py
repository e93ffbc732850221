"""The buffer over real sockets, and its role from start to end."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import zmq

from async_agent_rl import protocol
from async_agent_rl.buffer import main as buffer_main
from async_agent_rl.buffer.broker import Broker
from async_agent_rl.buffer.server import serve
from async_agent_rl.config import (
    BufferSection,
)
from async_agent_rl.errors import InputError, RunError
from async_agent_rl.protocol import AnyMessage
from async_agent_rl.transport.memory import MemoryMailbox
from async_agent_rl.transport.sockets import make_dealer, make_subscriber
from tests.broker_harness import M, new_spec, trajectory_of


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


class SocketPeer:
    """A blocking role over real sockets."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, name: str) -> None:
        self.name = name
        self.socket = make_dealer(context, address, name)
        self.say(protocol.Hello(role="actor" if "actor" in name else "learner", name=name, run_id="run-1"))
        self.expect(protocol.Welcome)

    def say(self, message: AnyMessage) -> None:
        self.socket.send(protocol.encode(message))

    def frames(self) -> list[bytes]:
        assert self.socket.poll(5000), f"{self.name}: no message came"
        return self.socket.recv_multipart()

    def expect(self, kind: type[M]) -> M:
        message = protocol.decode(self.frames()[0])
        assert isinstance(message, kind), message
        return message

    def play(self, capacity: int, version: int) -> int:
        self.say(protocol.LeaseRequest(capacity=capacity))
        leases = self.expect(protocol.LeaseGrant).leases
        for lease in leases:
            self.socket.send_multipart(trajectory_of(lease, self.name, version))
        for _ in leases:
            self.expect(protocol.Ack)
        return len(leases)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


Running = tuple[buffer_main.BufferAddresses, threading.Thread, threading.Event]


@pytest.fixture
def running_buffer(tmp_path: Path) -> Iterator[Running]:
    """The whole role but its process: it binds, announces itself and serves in a thread."""
    stop = threading.Event()
    thread = threading.Thread(target=buffer_main._body, args=(new_spec(run_dir=str(tmp_path)), stop))
    thread.start()
    addresses = buffer_main.wait_for_addresses(tmp_path, 5.0, thread.is_alive)
    yield addresses, thread, stop
    stop.set()
    thread.join(5.0)
    assert not thread.is_alive()
    assert not buffer_main.address_path(tmp_path).exists()


def test_two_updates_over_real_sockets(running_buffer: Running, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    addresses, thread, _ = running_buffer
    hints = make_subscriber(context, addresses.hints)
    learner, actor, other = (SocketPeer(context, addresses.router, name) for name in ("learner", "actor-0", "actor-1"))
    for version in range(2):
        played = 0
        while played < 4:
            played += actor.play(1, version) + other.play(1, version)
        learner.say(protocol.BatchRequest(version=version, num_groups=2))
        frames = learner.frames()
        batch = protocol.decode(frames[0])
        assert isinstance(batch, protocol.Batch)
        assert batch.groups == [2 * version, 2 * version + 1]
        assert len(frames) == 21
        assert protocol.read_trajectory(frames[-5:]).versions.tolist() == [version] * 3
        learner.say(protocol.Trained(version=version + 1, groups=batch.groups))
    learner.say(protocol.Stop(reason="enough"))
    assert learner.expect(protocol.Stop).reason == actor.expect(protocol.Stop).reason == "enough"
    thread.join(5.0)
    assert not thread.is_alive()
    published = []
    while hints.poll(200):
        published.append(protocol.decode(hints.recv()))
    assert published[-2:] == [protocol.VersionHint(version=2), protocol.Stop(reason="enough")]


def test_the_stop_event_ends_the_role_and_tells_everyone(
    running_buffer: Running, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    addresses, thread, stop = running_buffer
    actor = SocketPeer(context, addresses.router, "actor-0")
    start_s = time.monotonic()
    stop.set()
    assert actor.expect(protocol.Stop).reason == "the buffer was told to end"
    thread.join(5.0)
    assert time.monotonic() - start_s < 3.0


def test_a_taken_port_ends_the_role_with_the_cure(tmp_path: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as taken:
        port = taken.bind_to_random_port("tcp://127.0.0.1")
        spec = new_spec(run_dir=str(tmp_path), buffer=BufferSection(port=port))
        with pytest.raises(InputError, match=rf"buffer\.port={port}: .*buffer\.port=0"):
            buffer_main._body(spec, threading.Event())
    assert not buffer_main.address_path(tmp_path).exists()


def test_waiting_for_a_dead_or_mute_buffer_ends(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="ended before it listened"):
        buffer_main.wait_for_addresses(tmp_path, 5.0, lambda: False)
    with pytest.raises(RunError, match=r"did not listen within 0\.05 s"):
        buffer_main.wait_for_addresses(tmp_path, 0.05, lambda: True)
    path = buffer_main.address_path(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"router": "tcp://127.0.0.1:1"}))
    with pytest.raises(RunError, match="damaged"):
        buffer_main.wait_for_addresses(tmp_path, 1.0, lambda: True)


async def test_deadlines_are_kept_while_nothing_arrives() -> None:
    """The loop wakes for a group's deadline by itself; the clock is the test's."""
    clock = [0.0]
    mailbox = MemoryMailbox()
    broker = Broker(new_spec(deadline_s=5.0))
    stop = threading.Event()
    now: Callable[[], float] = lambda: clock[0]  # noqa: E731
    loop = asyncio.create_task(serve(broker, mailbox, stop, now))
    actor = mailbox.connect("actor-0")
    actor.send([protocol.encode(protocol.Hello(role="actor", name="actor-0", run_id="run-1"))])
    assert isinstance(protocol.decode((await actor.receive(2.0))[0]), protocol.Welcome)
    actor.send([protocol.encode(protocol.LeaseRequest(capacity=8))])
    assert isinstance(protocol.decode((await actor.receive(2.0))[0]), protocol.LeaseGrant)
    actor.send([protocol.encode(protocol.LeaseRequest(capacity=8))])
    clock[0] = 5.0
    grant = protocol.decode((await actor.receive(2.0))[0])
    assert isinstance(grant, protocol.LeaseGrant)
    assert {lease.group for lease in grant.leases} == {4, 5, 6, 7}
    stop.set()
    assert await asyncio.wait_for(loop, 2.0) == "the buffer was told to end"
    assert isinstance(protocol.decode((await actor.receive(2.0))[0]), protocol.Stop)


async def test_an_actor_that_cannot_be_reached_loses_its_leases_at_once() -> None:
    mailbox = MemoryMailbox()
    broker = Broker(new_spec())
    stop = threading.Event()
    loop = asyncio.create_task(serve(broker, mailbox, stop))
    gone, other = mailbox.connect("actor-0"), mailbox.connect("actor-1")
    for actor in (gone, other):
        actor.send([protocol.encode(protocol.Hello(role="actor", name=actor.identity, run_id="run-1"))])
        await actor.receive(2.0)
    gone.send([protocol.encode(protocol.LeaseRequest(capacity=8))])
    await gone.receive(2.0)
    other.send([protocol.encode(protocol.LeaseRequest(capacity=8))])
    mailbox.disconnect("actor-0")
    gone.send([protocol.encode(protocol.Heartbeat(stats=protocol.ActorStats()))])  # its last message; nobody answers
    grant = protocol.decode((await other.receive(2.0))[0])
    assert isinstance(grant, protocol.LeaseGrant)
    assert [(lease.group, lease.attempt) for lease in grant.leases] == [(n, 1) for n in range(4) for _ in range(2)]
    stop.set()
    await asyncio.wait_for(loop, 2.0)
