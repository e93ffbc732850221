"""The in-memory twin of the sockets: the same mailbox without a network, for tests.

Knows nothing of ZeroMQ. Everything lives in one event loop; messages arrive in the order they were sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from async_agent_rl.protocol import Frame


class MemoryMailbox:
    """The buffer's end. Implements `Mailbox`."""

    def __init__(self, queue_messages: int = 4096) -> None:
        self._queue_messages = queue_messages
        self._inbox: deque[tuple[str, list[Frame]]] = deque()
        self._arrived = asyncio.Event()
        self._peers: dict[str, MemoryPeer] = {}

    def connect(self, identity: str) -> MemoryPeer:
        """A peer's end; a second one of the same name takes the first one's place."""
        peer = MemoryPeer(identity, self)
        self._peers[identity] = peer
        return peer

    def disconnect(self, identity: str) -> None:
        """The peer is gone: sending to it fails from now on."""
        self._peers.pop(identity, None)

    async def wait(self, timeout_s: float) -> bool:
        try:
            await asyncio.wait_for(self._arrived.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def receive(self) -> tuple[str, list[Frame]] | None:
        if not self._inbox:
            self._arrived.clear()
            return None
        return self._inbox.popleft()

    def send(self, peer: str, frames: Sequence[Frame]) -> bool:
        target = self._peers.get(peer)
        if target is None or target.inbox.qsize() >= self._queue_messages:
            return False
        target.inbox.put_nowait([bytes(frame) for frame in frames])
        return True

    def publish(self, frame: Frame) -> None:
        for peer in self._peers.values():
            if len(peer.hints) < self._queue_messages:
                peer.hints.append(bytes(frame))

    def close(self) -> None:
        self._peers.clear()

    def deliver(self, sender: str, frames: Sequence[Frame]) -> None:
        """Put a peer's message into the buffer's inbox."""
        self._inbox.append((sender, [bytes(frame) for frame in frames]))
        self._arrived.set()


class MemoryPeer:
    """A role's end: what a DEALER and a SUB together are to it."""

    def __init__(self, identity: str, mailbox: MemoryMailbox) -> None:
        self.identity = identity
        self._mailbox = mailbox
        self.inbox: asyncio.Queue[list[Frame]] = asyncio.Queue()
        self.hints: list[bytes] = []

    def send(self, frames: Sequence[Frame]) -> None:
        self._mailbox.deliver(self.identity, frames)

    async def receive(self, timeout_s: float) -> list[Frame]:
        """The next message. Raises TimeoutError."""
        return await asyncio.wait_for(self.inbox.get(), timeout_s)
