"""The buffer's loop: one message in, the broker's answers out, and time passed on to it.

Waits for: messages, the next deadline, the stop event. Unblocked by: any of them; it never waits for one peer.
Knows nothing of what the messages mean.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from async_agent_rl.buffer.broker import Broker, Outgoing
from async_agent_rl.transport.mailbox import Mailbox

LONGEST_WAIT_S = 0.2
"""How late the stop event may be noticed."""
BURST_MESSAGES = 256
"""Messages handled in a row before deadlines get their turn."""


async def serve(
    broker: Broker, mailbox: Mailbox, stop: threading.Event, clock: Callable[[], float] = time.monotonic
) -> str:
    """Serve until a Stop message comes or `stop` is set; everyone has then been sent Stop.

    Args:
        clock: seconds, monotonic.

    Returns:
        Why it ended.
    """
    while broker.stop_reason is None:
        await mailbox.wait(min(LONGEST_WAIT_S, broker.seconds_to_deadline(clock())))
        is_drained = _handle_burst(broker, mailbox, clock)
        if stop.is_set():
            _send(broker, mailbox, broker.stop("the buffer was told to end", clock()), clock)
        _send(broker, mailbox, broker.tick(clock(), is_drained), clock)
    return broker.stop_reason


def _handle_burst(broker: Broker, mailbox: Mailbox, clock: Callable[[], float]) -> bool:
    """Handle what has arrived; whether that was all."""
    for _ in range(BURST_MESSAGES):
        message = mailbox.receive()
        if message is None:
            return True
        sender, frames = message
        _send(broker, mailbox, broker.handle(sender, frames, clock()), clock)
        if broker.stop_reason is not None:
            return True
    return False


def _send(broker: Broker, mailbox: Mailbox, outbox: Iterable[Outgoing], clock: Callable[[], float]) -> None:
    """Send everything, and what follows from a peer that cannot be reached."""
    waiting = deque(outbox)
    while waiting:
        outgoing = waiting.popleft()
        if outgoing.peer is None:
            mailbox.publish(outgoing.frames[0])
        elif not mailbox.send(outgoing.peer, outgoing.frames):
            waiting.extend(broker.undelivered(outgoing, clock()))
