"""The learner's line to the buffer. All sockets live in one network thread; the learner only waits on a queue.

Who waits for whom: the learner waits for a batch; the thread repeats the request while it waits, so that a living
buffer is heard every few seconds, and ends the wait with an error when it is not. Knows nothing of what is trained.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import structlog
import zmq

from async_agent_rl import protocol
from async_agent_rl.errors import AsyncAgentRLError, DropReason, RunError
from async_agent_rl.protocol import AnyMessage, Batch, BatchRequest, Dropped, Frame, Hello, Stop, Trained, Welcome
from async_agent_rl.transport.sockets import COPY_BELOW_BYTES, make_dealer
from learner.intake import ReceivedBatch, read_batch

log = structlog.get_logger()

_POLL_S = 0.2
"""How late a stop event or a dead network thread may be noticed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patience:
    """Seconds after which something else must happen."""

    hello_s: float = 20.0
    """Until the buffer's Welcome."""
    repeat_s: float = 2.0
    """Between two requests for the same batch."""
    silence_s: float = 15.0
    """Without a word from the buffer while a batch is wanted."""
    flush_s: float = 2.0
    """For the last messages to leave when the client closes."""


class BufferClient:
    """Context manager, used from one thread. Leaving it sends what is queued and ends the network thread."""

    def __init__(self, address: str, run_id: str, name: str, group_size: int, patience: Patience | None = None) -> None:
        """
        Args:
            address: of the buffer's ROUTER.
            run_id: refused by a buffer of another run.
            name: identity on the wire.
            group_size: G; every batch is checked for it.
        """
        self._group_size = group_size
        self._incarnation = 0
        self._ended: set[int] = set()  # groups trained or dropped by us: a batch that holds one is an echo
        self._inbox: queue.SimpleQueue[_Reply] = queue.SimpleQueue()
        self._network = _Network(address, Hello(role="learner", name=name, run_id=run_id), self._inbox, patience)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._network.close()

    def connect(self, stop: threading.Event) -> Welcome | None:
        """Say Hello; None when the stop event or the buffer ended the wait.

        Raises:
            RunError: the buffer refuses, or does not answer in time.
        """
        self._network.start()
        reply = self._wait(stop)
        if reply is None or not isinstance(reply.message, Welcome):
            return None
        self._incarnation = reply.message.incarnation
        return reply.message

    def next_batch(self, version: int, num_groups: int, stop: threading.Event) -> ReceivedBatch | None:
        """Wait for complete groups; None when the stop event or a Stop from the buffer ended the wait.

        Args:
            version: of the weights that will consume them.
            num_groups: B.

        Raises:
            RunError: the buffer is silent, refuses, or the network thread died.
            ProtocolError: what came is no batch of B complete groups.
        """
        self._network.post(BatchRequest(version=version, num_groups=num_groups))
        while True:
            reply = self._wait(stop)
            if reply is None or isinstance(reply.message, Stop):
                return None
            if isinstance(reply.message, Batch) and not self._is_echo(reply.message, version):
                self._network.post(None)  # no more repeats
                return read_batch(reply.message, reply.frames, num_groups, self._group_size, self._incarnation)

    def report_trained(self, version: int, groups: Sequence[int]) -> None:
        """`groups` are part of `version`, which is published."""
        self._ended = set(groups)  # older echoes bear an older version
        self._network.post(Trained(version=version, groups=list(groups)))

    def report_dropped(self, groups: Sequence[int], reason: DropReason) -> None:
        """`groups` will not be trained on."""
        self._ended |= set(groups)
        self._network.post(Dropped(groups=list(groups), reason=reason))

    def send_stop(self, reason: str) -> None:
        """End the run: the buffer passes it on to everyone."""
        self._network.post(Stop(reason=reason))

    def _is_echo(self, batch: Batch, version: int) -> bool:
        return batch.version != version or not self._ended.isdisjoint(batch.groups)

    def _wait(self, stop: threading.Event) -> _Reply | None:
        """The next reply; None when the run is to end."""
        while not stop.is_set():
            try:
                reply = self._inbox.get(timeout=_POLL_S)
            except queue.Empty:
                if not self._network.is_alive:
                    raise RunError("the learner's network thread ended unexpectedly; its trace is on stderr") from None
                continue
            if reply.error is not None:
                raise reply.error
            if isinstance(reply.message, Stop):
                log.info("stop_received", reason=reply.message.reason)
            return reply
        return None


@dataclasses.dataclass(frozen=True)
class _Reply:
    """What the network thread found: a message, or the error that ended it."""

    message: AnyMessage | None = None
    frames: Sequence[Frame] = ()
    error: AsyncAgentRLError | None = None


class _Network:
    """Owns the sockets; everything but `start`, `post` and `close` runs in its thread."""

    def __init__(self, address: str, hello: Hello, inbox: queue.SimpleQueue[_Reply], patience: Patience | None) -> None:
        self._address = address
        self._hello = hello
        self._inbox = inbox
        self._patience = patience or Patience()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._outbox: queue.SimpleQueue[AnyMessage | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        wake_address = "inproc://wake"
        self._wake_in = self._context.socket(zmq.PAIR)
        self._wake_in.bind(wake_address)
        self._wake_out = self._context.socket(zmq.PAIR)  # used by the caller's thread only
        self._wake_out.connect(wake_address)
        self._thread = threading.Thread(target=self._run, name="learner-network", daemon=True)
        self._wanted: BatchRequest | None = None
        self._asked_s = 0.0
        self._heard_s = 0.0

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def post(self, message: AnyMessage | None) -> None:
        """Have a message sent; None withdraws the open request."""
        self._outbox.put(message)
        self._wake()

    def close(self) -> None:
        """Send what is queued, end the thread, close the sockets. Safe to call twice."""
        self._closing.set()
        if self._thread.ident is not None:
            self._wake()
            self._thread.join(self._patience.flush_s + 1.0)
        if not self._context.closed and not self._thread.is_alive():
            self._wake_out.close(linger=0)
            self._wake_in.close(linger=0)
            self._context.term()

    def _wake(self) -> None:
        if not self._wake_out.closed:
            with contextlib.suppress(zmq.Again):  # the queue is full of wake-ups already, or the thread has ended
                self._wake_out.send(b"", zmq.NOBLOCK)

    def _run(self) -> None:
        dealer = make_dealer(self._context, self._address, self._hello.name)
        try:
            self._converse(dealer)
        except AsyncAgentRLError as error:
            self._inbox.put(_Reply(error=error))
        except zmq.ZMQError as error:
            self._inbox.put(_Reply(error=RunError(f"the learner's line to the buffer broke: {error}")))
        finally:
            dealer.close(linger=int(self._patience.flush_s * 1000))

    def _converse(self, dealer: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(dealer, zmq.POLLIN)
        poller.register(self._wake_in, zmq.POLLIN)
        dealer.send(protocol.encode(self._hello), zmq.NOBLOCK)
        started_s = self._heard_s = time.monotonic()
        is_welcome = False
        while not self._closing.is_set():
            ready = dict(poller.poll(int(_POLL_S * 1000)))
            while self._wake_in in ready and self._wake_in.poll(0):
                self._wake_in.recv(zmq.NOBLOCK)
            self._send_posted(dealer)
            while dealer in ready and dealer.poll(0):
                is_welcome |= self._receive(dealer)
            now_s = time.monotonic()
            if not is_welcome and now_s - started_s > self._patience.hello_s:
                raise RunError(f"the buffer at {self._address} did not answer within {self._patience.hello_s:g} s")
            self._keep_asking(dealer, now_s)
        self._send_posted(dealer)

    def _receive(self, dealer: zmq.Socket[bytes]) -> bool:
        """Pass one message on; True when it was the Welcome."""
        parts = dealer.recv_multipart(zmq.NOBLOCK, copy=False)
        self._heard_s = time.monotonic()
        frames: list[Frame] = [part.bytes if len(part) < COPY_BELOW_BYTES else part.buffer for part in parts]
        message = protocol.decode(frames[0])
        if isinstance(message, protocol.Refused):
            raise RunError(f"the buffer refused the learner: {message.reason}")
        if isinstance(message, Welcome | Stop) or (isinstance(message, Batch) and self._wanted is not None):
            self._inbox.put(_Reply(message, frames[1:]))
        return isinstance(message, Welcome)

    def _send_posted(self, dealer: zmq.Socket[bytes]) -> None:
        while True:
            try:
                message = self._outbox.get_nowait()
            except queue.Empty:
                return
            if message is None:
                self._wanted = None
                continue
            if isinstance(message, BatchRequest):
                self._wanted = message
                self._asked_s = self._heard_s = time.monotonic()
            dealer.send(protocol.encode(message), zmq.NOBLOCK)

    def _keep_asking(self, dealer: zmq.Socket[bytes], now_s: float) -> None:
        """While a batch is wanted: repeat the request, and give up on a buffer that is not heard."""
        if self._wanted is None:
            return
        if now_s - self._heard_s > self._patience.silence_s:
            raise RunError(
                f"the buffer at {self._address} has been silent for {now_s - self._heard_s:.0f} s while the learner "
                f"waits for groups"
            )
        if now_s - self._asked_s > self._patience.repeat_s:
            self._asked_s = now_s
            dealer.send(protocol.encode(self._wanted), zmq.NOBLOCK)
