"""A buffer that answers the learner as a test scripts it, over real sockets, in its own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import zmq

from async_agent_rl import protocol
from async_agent_rl.protocol import AnyMessage, Batch, BufferStats, Frame, Hello, Trajectory, Welcome
from tests.learner_samples import random_groups

Answer = Callable[[AnyMessage], Sequence[Sequence[Frame]]]


def stats_of(**counts: float) -> BufferStats:
    values: dict[str, object] = {
        "groups_ready": 0,
        "groups_in_flight": 0,
        "groups_issued": 0,
        "groups_dropped": {},
        "leases_failed": {},
        "duplicates": 0,
        "admission_blocked_s": 0.0,
        "actors": {},
    }
    return BufferStats(**(values | counts))  # type: ignore[arg-type]


def batch_frames(trajectories: Sequence[Trajectory], group_size: int, version: int) -> list[Frame]:
    """A Batch message as the buffer sends it."""
    groups = list(dict.fromkeys(trajectory.header.group for trajectory in trajectories))
    header = Batch(groups=groups, group_size=group_size, stats=stats_of(), version=version)
    frames: list[Frame] = [protocol.encode(header)]
    for trajectory in trajectories:
        frames += protocol.trajectory_frames(trajectory)
    return frames


def groups_numbered(numbers: Sequence[int], group_size: int, version: int) -> list[Trajectory]:
    """Random groups of these numbers, sampled by `version`."""
    made = random_groups(seed=max(numbers), num_groups=max(numbers) + 1, size=group_size, version=version)
    return [made[number * group_size + member] for number in numbers for member in range(group_size)]


class ScriptedBuffer:
    """Context manager. `answer` gives the messages to send for each received one; a Hello is welcomed by default."""

    def __init__(self, answer: Answer, *, welcome: bool = True) -> None:
        self._answer = answer
        self._welcome = welcome
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self.address = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self.received: list[AnyMessage] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join(5.0)
        self._socket.close()
        self._context.term()

    def received_of(self, kind: type[AnyMessage]) -> list[AnyMessage]:
        return [message for message in self.received if isinstance(message, kind)]

    def _serve(self) -> None:
        while not self._closing.is_set() or self._socket.poll(50):
            if not self._socket.poll(20):
                continue
            sender, frame = self._socket.recv_multipart()
            message = protocol.decode(frame)
            self.received.append(message)
            if isinstance(message, Hello) and self._welcome:
                self._socket.send_multipart([sender, protocol.encode(Welcome(version=0, incarnation=0))])
            for frames in self._answer(message):
                self._socket.send_multipart([sender, *frames])
