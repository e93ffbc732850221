"""The actor's line to the buffer: hello, leases, results until they are acknowledged, heartbeats, version news.

Delivery is at-least-once: a result is kept and sent again until its Ack comes. Knows nothing of episodes, weights or
the engine.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import cast

import structlog
import zmq
import zmq.asyncio

from async_agent_rl import protocol
from async_agent_rl.errors import ProtocolError, RunError
from async_agent_rl.protocol import ActorStats, Frame, LeaseGrant, Welcome
from async_agent_rl.roles import RoleSpec
from async_agent_rl.transport.sockets import make_dealer, make_subscriber

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds."""

    welcome_s: float = 20.0
    """For the answer to the Hello."""
    beat_s: float = 0.25
    """Between heartbeats; they carry the counters from which the rates of short updates are computed."""
    resend_s: float = 5.0
    """A result without Ack is sent again after this long."""
    silence_s: float = 15.0
    """A buffer that sent nothing for this long, though each heartbeat is answered, is gone."""


@dataclasses.dataclass
class _Unacknowledged:
    frames: Sequence[Frame]
    sent_s: float


class BufferClient:
    """One actor's sockets. Create inside the event loop; `connect`, then `run` beside the rest until it raises."""

    def __init__(self, spec: RoleSpec, stats: Callable[[], ActorStats], timing: Timing | None = None) -> None:
        """
        Args:
            stats: asked at every heartbeat.
        """
        self._spec = spec
        self._stats = stats
        self._timing = timing or Timing()
        self._context = zmq.asyncio.Context()
        context = cast("zmq.Context[zmq.Socket[bytes]]", self._context)
        self._dealer = cast("zmq.asyncio.Socket", make_dealer(context, spec.buffer_address, spec.name))
        self._hints = cast("zmq.asyncio.Socket", make_subscriber(context, spec.hint_address))
        self._unacknowledged: dict[int, _Unacknowledged] = {}
        self._last_heard_s = time.monotonic()
        self.grants: asyncio.Queue[LeaseGrant] = asyncio.Queue()
        """Answers to `request_leases`."""
        self.stop_reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when the buffer says Stop."""
        self.on_version: Callable[[int], None] = lambda _version: None
        """Told every version the buffer mentions."""

    @property
    def num_unacknowledged(self) -> int:
        return len(self._unacknowledged)

    async def connect(self) -> Welcome:
        """Introduce this actor.

        Raises:
            RunError: the buffer refused it, or did not answer in time.
        """
        spec = self._spec
        await self._send([protocol.encode(protocol.Hello(role="actor", name=spec.name, run_id=spec.run_id))])
        try:
            async with asyncio.timeout(self._timing.welcome_s):
                reply = protocol.decode((await self._dealer.recv_multipart())[0])
        except TimeoutError as error:
            raise RunError(
                f"the buffer at {spec.buffer_address} did not answer within {self._timing.welcome_s:g} s"
            ) from error
        self._last_heard_s = time.monotonic()
        if isinstance(reply, protocol.Stop):
            self._stopped(reply.reason)
            return Welcome(version=-1, incarnation=spec.incarnation)
        if isinstance(reply, protocol.Refused):
            raise RunError(f"the buffer at {spec.buffer_address} refused {spec.name}: {reply.reason}")
        if not isinstance(reply, Welcome):
            raise ProtocolError(f"the buffer answered Hello with {type(reply).__name__}")
        log.info("welcomed", version=reply.version, incarnation=reply.incarnation)
        return reply

    async def run(self) -> None:
        """Keep the line alive until cancelled.

        Raises:
            RunError: the buffer is silent or refuses this actor.
            ProtocolError: it sent something an actor cannot be sent.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._receive(self._dealer), name="receive")
            tasks.create_task(self._receive(self._hints), name="hints")
            tasks.create_task(self._beat(), name="beat")

    async def request_leases(self, capacity: int, minimum: int) -> None:
        """Ask for work; the answer arrives in `grants`. One request is out at a time."""
        await self._send([protocol.encode(protocol.LeaseRequest(capacity=capacity, minimum=minimum))])

    async def report(self, result: protocol.Trajectory | protocol.LeaseFailed) -> None:
        """Send the end of a lease, now and again until it is acknowledged."""
        frames: Sequence[Frame]
        if isinstance(result, protocol.LeaseFailed):
            lease_id, frames = result.lease_id, [protocol.encode(result)]
        else:
            lease_id, frames = result.header.lease_id, protocol.trajectory_frames(result)
        self._unacknowledged[lease_id] = _Unacknowledged(frames, time.monotonic())
        await self._send(frames)

    def close(self) -> None:
        """Safe to call twice."""
        if not self._context.closed:
            self._context.destroy(linger=0)

    # --- inside ------------------------------------------------------------------------------------------------

    async def _send(self, frames: Sequence[Frame]) -> None:
        # A full queue makes this wait; the watch over the buffer's silence ends that.
        await self._dealer.send_multipart(frames, copy=False)

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            frames = await socket.recv_multipart()
            self._last_heard_s = time.monotonic()
            self._handle(protocol.decode(frames[0]))

    def _handle(self, message: protocol.AnyMessage) -> None:
        match message:
            case protocol.LeaseGrant():
                self.on_version(message.version)
                self.grants.put_nowait(message)
            case protocol.Ack():
                self._unacknowledged.pop(message.lease_id, None)
                self.on_version(message.version)
            case protocol.VersionHint():
                self.on_version(message.version)
            case protocol.Stop():
                self._stopped(message.reason)
            case protocol.Refused():
                raise RunError(f"the buffer refused {self._spec.name}: {message.reason}")
            case _:
                raise ProtocolError(f"the buffer sent {type(message).__name__}, which is not for actors")

    def _stopped(self, reason: str) -> None:
        if not self.stop_reason.done():
            self.stop_reason.set_result(reason)

    async def _beat(self) -> None:
        while True:
            await self._send([protocol.encode(protocol.Heartbeat(stats=self._stats()))])
            await self._resend()
            silent_s = time.monotonic() - self._last_heard_s
            if silent_s > self._timing.silence_s:
                raise RunError(f"the buffer at {self._spec.buffer_address} has been silent for {silent_s:.0f} s")
            await asyncio.sleep(self._timing.beat_s)

    async def _resend(self) -> None:
        now_s = time.monotonic()
        for lease_id, waiting in list(self._unacknowledged.items()):
            if now_s - waiting.sent_s >= self._timing.resend_s:
                log.warning("result_sent_again", lease=lease_id)
                waiting.sent_s = now_s
                await self._send(waiting.frames)
