"""The learner's line to the buffer: complete batches, no echo twice, no silent wait.

Run: python -m pytest tests/unit/test_learner_client.py
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from async_agent_rl import protocol
from async_agent_rl.errors import DropReason, ProtocolError, RunError
from async_agent_rl.protocol import (
    AnyMessage,
    Batch,
    BatchRequest,
    Dropped,
    Frame,
    Hello,
    Refused,
    Stop,
    Trained,
    VersionHint,
)
from learner.client import BufferClient, Patience
from learner.intake import read_batch
from tests.scripted_buffer import ScriptedBuffer, batch_frames, groups_numbered, stats_of

QUICK = Patience(hello_s=0.5, repeat_s=0.05, silence_s=0.5, flush_s=1.0)
SIZE = 3


def client_of(buffer: ScriptedBuffer, patience: Patience = QUICK) -> BufferClient:
    return BufferClient(buffer.address, "run", "learner", SIZE, patience)


def nothing(_: AnyMessage) -> Sequence[Sequence[Frame]]:
    return []


def test_the_first_message_is_hello_and_a_batch_arrives_whole() -> None:
    def answer(message: AnyMessage) -> Sequence[Sequence[Frame]]:
        if not isinstance(message, BatchRequest):
            return []
        return [batch_frames(groups_numbered([0, 1], SIZE, 4), SIZE, message.version)]

    with ScriptedBuffer(answer) as buffer, client_of(buffer) as client:
        assert client.connect(threading.Event()) is not None
        batch = client.next_batch(5, 2, threading.Event())
    assert batch is not None
    assert batch.numbers == [0, 1]
    assert [t.header.member for t in batch.trajectories] == [0, 1, 2, 0, 1, 2]
    assert [group.staleness(5) for group in batch.groups] == [1, 1]
    expected = groups_numbered([0, 1], SIZE, 4)
    assert batch.trajectories[4].action_ids.tolist() == expected[4].action_ids.tolist()
    assert buffer.received[0] == Hello(role="learner", name="learner", run_id="run")
    assert buffer.received[1] == BatchRequest(version=5, num_groups=2)


def test_the_request_is_repeated_until_the_batch_comes_and_echoes_of_it_are_let_go() -> None:
    """The buffer answers every repeat: the batch for version 0 comes three times, then the one for version 1."""
    asked: list[int] = []

    def answer(message: AnyMessage) -> Sequence[Sequence[Frame]]:
        if not isinstance(message, BatchRequest):
            return []
        asked.append(message.version)
        if asked.count(message.version) < 3:
            return [[protocol.encode(VersionHint(version=0))]]
        old = batch_frames(groups_numbered([0], SIZE, 0), SIZE, 0)
        return [old, old] if message.version == 0 else [old, batch_frames(groups_numbered([1], SIZE, 0), SIZE, 1)]

    with ScriptedBuffer(answer) as buffer, client_of(buffer) as client:
        stop = threading.Event()
        client.connect(stop)
        first = client.next_batch(0, 1, stop)
        client.report_trained(1, [0])
        second = client.next_batch(1, 1, stop)
    assert first is not None
    assert second is not None
    assert (first.numbers, second.numbers) == ([0], [1])


def test_a_batch_that_still_holds_a_dropped_group_is_an_echo() -> None:
    def answer(message: AnyMessage) -> Sequence[Sequence[Frame]]:
        if not isinstance(message, BatchRequest):
            return []
        before = batch_frames(groups_numbered([0, 1], SIZE, 0), SIZE, 3)
        after = batch_frames(groups_numbered([1, 2], SIZE, 3), SIZE, 3)
        return [before, after] if len(buffer.received_of(BatchRequest)) > 1 else [before]

    with ScriptedBuffer(answer) as buffer, client_of(buffer, Patience()) as client:
        stop = threading.Event()
        client.connect(stop)
        assert client.next_batch(3, 2, stop) is not None
        client.report_dropped([0], DropReason.TOO_STALE)
        again = client.next_batch(3, 2, stop)
    assert again is not None
    assert again.numbers == [1, 2]
    assert buffer.received_of(Dropped) == [Dropped(groups=[0], reason=DropReason.TOO_STALE)]


def test_a_silent_buffer_ends_the_wait_by_name() -> None:
    with ScriptedBuffer(nothing) as buffer, client_of(buffer) as client:
        client.connect(threading.Event())
        with pytest.raises(RunError, match=f"{buffer.address} has been silent"):
            client.next_batch(0, 1, threading.Event())
    assert len(buffer.received_of(BatchRequest)) >= 2  # it kept asking


def test_a_buffer_that_only_says_it_lives_is_waited_for() -> None:
    def answer(message: AnyMessage) -> Sequence[Sequence[Frame]]:
        if not isinstance(message, BatchRequest):
            return []
        if time.monotonic() - started_s < 2 * QUICK.silence_s:
            return [[protocol.encode(VersionHint(version=0))]]
        return [batch_frames(groups_numbered([0], SIZE, 0), SIZE, 0)]

    with ScriptedBuffer(answer) as buffer, client_of(buffer) as client:
        started_s = time.monotonic()
        client.connect(threading.Event())
        assert client.next_batch(0, 1, threading.Event()) is not None
        assert time.monotonic() - started_s > 2 * QUICK.silence_s


def test_nobody_there_ends_the_hello_by_name() -> None:
    with ScriptedBuffer(nothing, welcome=False) as buffer, client_of(buffer) as client:  # noqa: SIM117
        with pytest.raises(RunError, match="did not answer within"):
            client.connect(threading.Event())


def test_a_refusal_ends_the_run_with_its_reason() -> None:
    def answer(message: AnyMessage) -> Sequence[Sequence[Frame]]:
        return [[protocol.encode(Refused(reason="this buffer serves run other"))]]

    with ScriptedBuffer(answer, welcome=False) as buffer, client_of(buffer) as client:  # noqa: SIM117
        with pytest.raises(RunError, match="refused the learner: this buffer serves run other"):
            client.connect(threading.Event())


def test_a_stop_from_the_buffer_or_the_event_ends_the_wait() -> None:
    def answer(message: AnyMessage) -> Sequence[Sequence[Frame]]:
        return [[protocol.encode(Stop(reason="over"))]] if isinstance(message, BatchRequest) else []

    with ScriptedBuffer(answer) as buffer, client_of(buffer) as client:
        client.connect(threading.Event())
        assert client.next_batch(0, 1, threading.Event()) is None
    with ScriptedBuffer(nothing) as buffer, client_of(buffer, Patience()) as client:
        client.connect(threading.Event())
        stop = threading.Event()
        threading.Timer(0.2, stop.set).start()
        assert client.next_batch(0, 1, stop) is None


def test_what_was_reported_leaves_before_the_client_closes() -> None:
    with ScriptedBuffer(nothing) as buffer:
        with client_of(buffer) as client:
            client.connect(threading.Event())
            client.report_trained(1, [0, 1])
            client.send_stop("all updates are done")
        deadline_s = time.monotonic() + 5
        while not buffer.received_of(Stop) and time.monotonic() < deadline_s:
            time.sleep(0.01)
    assert buffer.received[1:] == [Trained(version=1, groups=[0, 1]), Stop(reason="all updates are done")]


@pytest.mark.parametrize(
    ("members", "numbers", "what"),
    [
        ([0, 1, 2, 0, 1], [0, 1], "frames"),
        ([0, 1, 2, 0, 1, 1], [0, 1], r"group 1 is not complete: members \[0, 1, 1\]"),
        ([0, 1, 2, 0, 1, 2], [0, 0], "2 different groups"),
        ([0, 1, 2, 0, 1, 2], [1, 0], "group 1 is not complete"),
    ],
)
def test_anything_but_complete_groups_is_refused(members: list[int], numbers: list[int], what: str) -> None:
    made = groups_numbered([0, 1], SIZE, 0)
    chosen = [made[(position // SIZE) * SIZE + member] for position, member in enumerate(members)]
    frames = [frame for trajectory in chosen for frame in protocol.trajectory_frames(trajectory)]
    header = Batch(groups=numbers, group_size=SIZE, stats=stats_of(), version=0)
    with pytest.raises(ProtocolError, match=what):
        read_batch(header, frames, num_groups=2, group_size=SIZE, incarnation=0)


def test_trajectories_of_another_incarnation_are_refused() -> None:
    frames = batch_frames(groups_numbered([0], SIZE, 0), SIZE, 0)
    header = protocol.decode(frames[0])
    assert isinstance(header, Batch)
    with pytest.raises(ProtocolError, match="incarnation 0, not 1"):
        read_batch(header, frames[1:], num_groups=1, group_size=SIZE, incarnation=1)
