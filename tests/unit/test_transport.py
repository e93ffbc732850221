"""Both mailboxes keep the same promises: named peers, whole messages, refusals instead of blocking."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import pytest
import zmq
import zmq.asyncio

from async_agent_rl.errors import InputError
from async_agent_rl.protocol import Frame
from async_agent_rl.transport.mailbox import Mailbox
from async_agent_rl.transport.memory import MemoryMailbox, MemoryPeer
from async_agent_rl.transport.sockets import COPY_BELOW_BYTES, ZmqMailbox, make_dealer, make_subscriber

DEADLINE_S = 5.0


class Peer(Protocol):
    def send(self, frames: Sequence[Frame]) -> None: ...

    async def receive(self, timeout_s: float) -> list[Frame]: ...


class DealerPeer:
    """A role's end over real sockets."""

    def __init__(self, context: zmq.asyncio.Context, address: str, identity: str) -> None:
        self.socket = make_dealer(context, address, identity)
        self.plain: zmq.Socket[bytes] = zmq.Socket(self.socket)  # the same one, without asyncio

    def send(self, frames: Sequence[Frame]) -> None:
        self.plain.send_multipart(frames, zmq.NOBLOCK)

    async def receive(self, timeout_s: float) -> list[Frame]:
        assert await self.socket.poll(int(timeout_s * 1000)), "no message came"
        return list(await self.socket.recv_multipart())


class Ends:
    """A mailbox and a way to connect peers to it."""

    def __init__(self, kind: str) -> None:
        self.context = zmq.asyncio.Context()
        self.mailbox: Mailbox = MemoryMailbox() if kind == "memory" else ZmqMailbox("127.0.0.1", 0)
        self.peers: list[Peer] = []  # a forgotten socket closes itself

    def connect(self, identity: str) -> Peer:
        if isinstance(self.mailbox, MemoryMailbox):
            return self.mailbox.connect(identity)
        assert isinstance(self.mailbox, ZmqMailbox)
        self.peers.append(DealerPeer(self.context, self.mailbox.address, identity))
        return self.peers[-1]

    async def receive(self) -> tuple[str, list[Frame]]:
        end_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < end_s:
            await self.mailbox.wait(0.1)
            message = self.mailbox.receive()
            if message is not None:
                return message
        raise AssertionError("no message came")


@pytest.fixture(params=["memory", "zmq"])
async def ends(request: pytest.FixtureRequest) -> AsyncIterator[Ends]:
    made = Ends(request.param)
    yield made
    made.mailbox.close()
    made.mailbox.close()  # safe to call twice
    made.context.destroy(linger=0)


@pytest.fixture
async def zmq_ends() -> AsyncIterator[Ends]:
    made = Ends("zmq")
    yield made
    made.context.destroy(linger=0)
    made.mailbox.close()


async def test_messages_arrive_whole_and_in_order_under_the_senders_name(ends: Ends) -> None:
    peer = ends.connect("actor-0")
    peer.send([b"one", b"", b"three"])
    peer.send([b"two"])
    assert await ends.receive() == ("actor-0", [b"one", b"", b"three"])
    assert await ends.receive() == ("actor-0", [b"two"])
    assert ends.mailbox.receive() is None


async def test_answers_reach_the_named_peer_only(ends: Ends) -> None:
    first, second = ends.connect("a"), ends.connect("b")
    first.send([b"hi"])
    second.send([b"hi"])
    await ends.receive()
    await ends.receive()
    assert ends.mailbox.send("b", [b"for", b"b"])
    assert ends.mailbox.send("a", [b"for a"])
    assert await first.receive(DEADLINE_S) == [b"for a"]
    assert await second.receive(DEADLINE_S) == [b"for", b"b"]


async def test_sending_to_nobody_is_refused_at_once(ends: Ends) -> None:
    assert ends.mailbox.send("ghost", [b"x"]) is False


async def test_waiting_ends_in_time_when_nothing_comes(ends: Ends) -> None:
    start_s = time.monotonic()
    assert await ends.mailbox.wait(0.05) is False
    assert time.monotonic() - start_s < 1.0


async def test_a_restarted_peer_takes_over_its_name(ends: Ends) -> None:
    old = ends.connect("actor-0")
    old.send([b"old"])
    await ends.receive()
    new = ends.connect("actor-0")
    new.send([b"new"])
    assert await ends.receive() == ("actor-0", [b"new"])
    assert ends.mailbox.send("actor-0", [b"welcome"])
    assert await new.receive(DEADLINE_S) == [b"welcome"]


async def test_a_peer_that_takes_nothing_is_refused_before_memory_fills() -> None:
    mailbox = MemoryMailbox(queue_messages=2)
    peer: MemoryPeer = mailbox.connect("slow")
    assert [mailbox.send("slow", [b"x"]) for _ in range(3)] == [True, True, False]
    await peer.receive(1.0)
    assert mailbox.send("slow", [b"x"])
    mailbox.disconnect("slow")
    assert mailbox.send("slow", [b"x"]) is False


async def test_zmq_peer_that_takes_nothing_is_refused_and_never_blocks(zmq_ends: Ends) -> None:
    peer = zmq_ends.connect("slow")
    peer.send([b"hi"])
    await zmq_ends.receive()
    start_s = time.monotonic()
    large = bytes(100_000)
    refused = next((count for count in range(20_000) if not zmq_ends.mailbox.send("slow", [large])), None)
    assert refused is not None
    assert time.monotonic() - start_s < 20.0


async def test_a_peer_that_vanished_is_noticed_when_it_is_spoken_to(zmq_ends: Ends) -> None:
    zmq_ends.connect("gone").send([b"hi"])
    await zmq_ends.receive()
    zmq_ends.context.destroy(linger=0)
    end_s = time.monotonic() + DEADLINE_S
    while zmq_ends.mailbox.send("gone", [b"there?"]):
        assert time.monotonic() < end_s
        await zmq_ends.mailbox.wait(0.01)


async def test_large_frames_are_kept_without_a_copy_and_small_ones_own_their_bytes(zmq_ends: Ends) -> None:
    small, large = bytes(COPY_BELOW_BYTES - 1), bytes(range(256)) * 400
    zmq_ends.connect("a").send([small, large])
    _, frames = await zmq_ends.receive()
    assert [type(frame) for frame in frames] == [bytes, memoryview]
    assert frames[1] == large


async def test_hints_reach_who_listens(zmq_ends: Ends) -> None:
    assert isinstance(zmq_ends.mailbox, ZmqMailbox)
    subscriber = make_subscriber(zmq_ends.context, zmq_ends.mailbox.hint_address)
    end_s = time.monotonic() + DEADLINE_S
    while not await subscriber.poll(20):  # a subscriber misses what came before it was connected
        zmq_ends.mailbox.publish(b"v1")
        assert time.monotonic() < end_s
    assert await subscriber.recv() == b"v1"


def test_a_port_in_use_is_named_with_the_cure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"buffer\.port={port}: .*Address already in use.*buffer\.port=0"):
            ZmqMailbox("127.0.0.1", port)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_loopback_names_become_addresses_one_can_connect_to(host: str) -> None:
    mailbox = ZmqMailbox(host, 0)
    assert mailbox.address.startswith("tcp://127.0.0.1:")
    assert mailbox.address != mailbox.hint_address
    mailbox.close()


async def test_the_twin_keeps_hints_of_connected_peers() -> None:
    mailbox = MemoryMailbox()
    peer = mailbox.connect("a")
    mailbox.publish(b"v1")
    assert peer.hints == [b"v1"]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(peer.receive(10.0), 0.01)
