"""What the buffer needs of a transport: named peers, whole messages, nothing that blocks.

Implemented by `sockets.ZmqMailbox` and, for tests, by `memory.MemoryMailbox`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from async_agent_rl.protocol import Frame


class Mailbox(Protocol):
    """Owned by one event loop."""

    async def wait(self, timeout_s: float) -> bool:
        """Until a message is there or the time is over; whether one is there."""
        ...

    def receive(self) -> tuple[str, list[Frame]] | None:
        """The next message and its sender; None when none is there."""
        ...

    def send(self, peer: str, frames: Sequence[Frame]) -> bool:
        """Queue a message for a peer. False when the peer is unknown or its queue is full; nothing is queued then."""
        ...

    def publish(self, frame: Frame) -> None:
        """Send a hint to whoever listens; it may be lost."""
        ...

    def close(self) -> None: ...  # safe to call twice
