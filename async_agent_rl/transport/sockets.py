"""ZeroMQ sockets as this project uses them: bounded queues, no lingering, dead links noticed, loopback by default.

Knows nothing of the messages. A socket belongs to one thread; none of these functions starts one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import zmq
import zmq.asyncio

from async_agent_rl.errors import InputError
from async_agent_rl.protocol import Frame

S = TypeVar("S", bound=zmq.Socket[Any])

QUEUE_MESSAGES = 4096
"""Messages a socket queues in each direction before it refuses more."""
MAX_FRAME_BYTES = 1 << 30
"""A frame above this is not ours: the peer is cut off instead of the memory filled."""
STOP_LINGER_MS = 1000
"""How long a closing buffer still tries to get its last messages (Stop) out."""
COPY_BELOW_BYTES = 65_536
"""Received frames smaller than this are copied out: a small frame kept as a view pins ZeroMQ's whole read block."""


def make_dealer(context: zmq.Context[S], address: str, identity: str) -> S:
    """A DEALER that is known to the buffer's ROUTER as `identity`.

    Pass a `zmq.asyncio.Context` to get its asyncio twin. Connecting never blocks and never fails: a buffer that is
    not there yet gets the messages once it is.
    """
    socket = context.socket(zmq.DEALER)
    _set_up(socket)
    socket.identity = identity.encode()
    socket.connect(address)
    return socket


def make_subscriber(context: zmq.Context[S], address: str) -> S:
    """A SUB for the buffer's hints. What was published before it was connected is missed: hints may be lost."""
    socket = context.socket(zmq.SUB)
    _set_up(socket)
    socket.subscribe(b"")
    socket.connect(address)
    return socket


class ZmqMailbox:
    """The buffer's end: a ROUTER for messages and a PUB for hints. Implements `Mailbox`."""

    def __init__(self, host: str, port: int) -> None:
        """Bind both sockets; the PUB always takes a free port.

        Raises:
            InputError: the port is in use or not allowed.
        """
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._publisher = self._context.socket(zmq.PUB)
        for socket in (self._router, self._publisher):
            _set_up(socket)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a message to nobody is an error, not a silent loss
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a restarted role takes over its name at once
        try:
            self.address = _bind(self._router, host, port)
            self.hint_address = _bind(self._publisher, host, 0)
        except InputError:
            self.close()
            raise
        # A view of the same socket that asyncio can wait on. Receiving stays with the plain one: a cancelled
        # `await recv()` may swallow the message it had already taken.
        self._awaitable: zmq.asyncio.Socket | None = None

    async def wait(self, timeout_s: float) -> bool:
        if self._awaitable is None:
            self._awaitable = zmq.asyncio.Socket(self._router)
        return bool(await self._awaitable.poll(int(max(0.0, timeout_s) * 1000)))

    def receive(self) -> tuple[str, list[Frame]] | None:
        try:
            sender, *frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        kept: list[Frame] = [frame.bytes if len(frame) < COPY_BELOW_BYTES else frame.buffer for frame in frames]
        return sender.bytes.decode("utf-8", errors="replace"), kept

    def send(self, peer: str, frames: Sequence[Frame]) -> bool:
        try:
            self._router.send_multipart([peer.encode(), *frames], zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return False
            raise
        return True

    def publish(self, frame: Frame) -> None:
        self._publisher.send(frame)  # PUB never blocks: it drops for subscribers that are full

    def close(self) -> None:
        for socket in (self._router, self._publisher):
            if not socket.closed:
                socket.close(linger=STOP_LINGER_MS)
        if not self._context.closed:
            self._context.term()


def _set_up(socket: zmq.Socket[Any]) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
    socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 10)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)


def _bind(socket: zmq.Socket[Any], host: str, port: int) -> str:
    host = "127.0.0.1" if host == "localhost" else host  # ZeroMQ binds numbers and interfaces, not names
    if ":" in host:
        socket.setsockopt(zmq.IPV6, 1)
        host = f"[{host}]"
    try:
        socket.bind(f"tcp://{host}:{port}")
    except zmq.ZMQError as error:
        raise InputError(
            f"buffer.port={port}: cannot listen on {host}:{port} ({zmq.strerror(error.errno or 0)}); "
            f"choose another port, or buffer.port=0 for any free one"
        ) from error
    return cast(bytes, socket.last_endpoint).decode()
