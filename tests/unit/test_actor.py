"""One actor over real sockets, opposite a buffer that does what the test says."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from actors.client import Timing
from actors.main import Actor
from async_agent_rl import protocol
from async_agent_rl.config import (
    ActorsSection,
    Config,
    EnvSection,
    GroupSection,
    ModelSection,
    RunSection,
    TrainSection,
)
from async_agent_rl.errors import FailureKind, RunError
from async_agent_rl.plugins import load_world
from async_agent_rl.roles import RoleSpec
from async_agent_rl.transport.sockets import ZmqMailbox
from async_agent_rl.weights import WeightStore
from tests.tiny import tiny_model, tiny_tokenizer

TIMING = Timing(welcome_s=5.0, beat_s=0.05, resend_s=0.2, silence_s=5.0)


class FakeBuffer:
    """Answers Hello and heartbeats; everything else is the test's to do."""

    def __init__(self) -> None:
        self.mailbox = ZmqMailbox("127.0.0.1", 0)
        self.version = 0
        self.answers_hello = True
        self.answers_beats = True
        self.acknowledges = True
        self.requests: list[protocol.LeaseRequest] = []
        self.beats: list[protocol.Heartbeat] = []
        self.failures: list[protocol.LeaseFailed] = []
        self.trajectories: list[protocol.Trajectory] = []
        self.changed = asyncio.Condition()

    @property
    def stats(self) -> protocol.ActorStats:
        return self.beats[-1].stats if self.beats else protocol.ActorStats()

    def send(self, message: protocol.AnyMessage) -> None:
        assert self.mailbox.send("actor-0", [protocol.encode(message)])

    def grant(self, *leases: int, version: int | None = None) -> None:
        granted = [
            protocol.Lease(lease_id=i, group=i // 2, member=i % 2, attempt=0, task_index=i, seed=100 + i)
            for i in leases
        ]
        self.send(protocol.LeaseGrant(leases=granted, version=self.version if version is None else version))

    async def serve(self) -> None:
        while True:
            await self.mailbox.wait(0.05)
            while (received := self.mailbox.receive()) is not None:
                self._handle([bytes(frame) for frame in received[1]])
                async with self.changed:
                    self.changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(condition)

    def _handle(self, frames: list[bytes]) -> None:
        message = protocol.decode(frames[0])
        match message:
            case protocol.Hello() if self.answers_hello:
                self.send(protocol.Welcome(version=self.version, incarnation=3))
            case protocol.LeaseRequest():
                self.requests.append(message)
            case protocol.Heartbeat():
                self.beats.append(message)
                if self.answers_beats:
                    self.send(protocol.VersionHint(version=self.version))
            case protocol.TrajectoryDone():
                self.trajectories.append(protocol.read_trajectory(frames))
                self._acknowledge(message.lease_id)
            case protocol.LeaseFailed():
                self.failures.append(message)
                self._acknowledge(message.lease_id)

    def _acknowledge(self, lease_id: int) -> None:
        if self.acknowledges:
            self.send(protocol.Ack(lease_id=lease_id, version=self.version))


class Meeting:
    """A fake buffer, a running actor, and the folder the weights lie in."""

    def __init__(self, folder: Path, deterministic: bool = False, max_steps: int = 4, **options: object) -> None:
        self.buffer = FakeBuffer()
        self.store = WeightStore(folder / "weights", keep=2)
        self.stop = threading.Event()
        config = Config(
            mode="sync" if deterministic else "async",
            run=RunSection(deterministic=deterministic),
            env=EnvSection(target="tests.tiny:EvenWorld", options=options, max_steps=max_steps),
            model=ModelSection(max_prompt_tokens=64, max_response_tokens=4),
            group=GroupSection(size=2),
            train=TrainSection(groups_per_update=2),
            actors=ActorsSection(slots=6),
        )
        self.spec = RoleSpec(
            name="actor-0",
            run_id="run",
            run_dir=str(folder),
            incarnation=3,
            config=config,
            num_train_tasks=40,
            buffer_address=self.buffer.mailbox.address,
            hint_address=self.buffer.mailbox.hint_address,
        )

    def publish(self, version: int) -> None:
        tensors = dict(tiny_model(seed=version).state_dict())
        tensors.pop("lm_head.weight")
        self.store.publish(version, 3, tensors)

    async def act(self, timing: Timing = TIMING) -> None:
        world = load_world(self.spec.config.env)
        await Actor(self.spec, world, tiny_model(), tiny_tokenizer(), timing).run(self.stop)


@asynccontextmanager
async def serving(meeting: Meeting) -> AsyncIterator[None]:
    server = asyncio.create_task(meeting.buffer.serve())
    try:
        yield
    finally:
        server.cancel()
        await asyncio.wait([server])
        meeting.buffer.mailbox.close()


@asynccontextmanager
async def acting(meeting: Meeting) -> AsyncIterator[asyncio.Task[None]]:
    """The actor runs inside the block and is told to stop at its end."""
    async with serving(meeting):
        actor = asyncio.create_task(meeting.act())
        try:
            yield actor
        finally:
            meeting.stop.set()
            started_s = time.monotonic()
            await asyncio.wait([actor], timeout=5)
            assert time.monotonic() - started_s < 2
        actor.result()


async def test_leases_come_back_as_trajectories_and_free_slots_are_asked_for(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path)
    buffer = meeting.buffer
    meeting.publish(0)
    async with acting(meeting):
        await buffer.until(lambda: len(buffer.requests) == 1)
        buffer.grant(0, 1, 2)
        await buffer.until(lambda: len(buffer.trajectories) == 3)
        await buffer.until(lambda: buffer.stats.in_flight == 0 and buffer.stats.episodes == 3)
    assert (buffer.requests[0].capacity, buffer.requests[0].minimum) == (6, 1)
    assert buffer.requests[1].capacity == 3
    assert len(buffer.requests) == 2  # one request at a time
    assert {trajectory.header.lease_id for trajectory in buffer.trajectories} == {0, 1, 2}
    header = buffer.trajectories[0].header
    assert (header.actor, header.incarnation, len(header.turns)) == ("actor-0", 3, 2)
    stats = buffer.stats
    assert stats.rows == 6
    assert stats.generated_tokens == sum(len(trajectory.action_ids) for trajectory in buffer.trajectories)
    assert stats.wins == sum(trajectory.header.won for trajectory in buffer.trajectories)


async def test_a_result_is_sent_again_until_it_is_acknowledged(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path)
    buffer = meeting.buffer
    meeting.publish(0)
    buffer.acknowledges = False
    async with acting(meeting):
        await buffer.until(lambda: len(buffer.requests) == 1)
        buffer.grant(7)
        await buffer.until(lambda: len(buffer.trajectories) == 2)
        buffer.acknowledges = True
        await buffer.until(lambda: len(buffer.trajectories) == 3)
        beats = len(buffer.beats)
        await buffer.until(lambda: len(buffer.beats) > beats + 6)  # longer than resend_s
    assert [trajectory.header.lease_id for trajectory in buffer.trajectories] == [7, 7, 7]
    assert len({trajectory.action_ids.tobytes() for trajectory in buffer.trajectories}) == 1


async def test_a_broken_environment_is_reported_as_a_failed_lease_and_the_others_go_on(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path, broken=[1])
    buffer = meeting.buffer
    meeting.publish(0)
    async with acting(meeting):
        await buffer.until(lambda: len(buffer.requests) == 1)
        buffer.grant(0, 1)
        await buffer.until(lambda: len(buffer.trajectories) == 1 and len(buffer.failures) == 1)
    assert (buffer.failures[0].lease_id, buffer.failures[0].kind) == (1, FailureKind.ENVIRONMENT_ERROR)
    assert buffer.trajectories[0].header.lease_id == 0


async def test_nothing_is_generated_before_the_granted_version_is_adopted(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path)
    buffer = meeting.buffer
    meeting.publish(0)
    async with acting(meeting):
        await buffer.until(lambda: len(buffer.requests) == 1)
        buffer.version = 2
        buffer.grant(0, 1)
        beats = len(buffer.beats)
        await buffer.until(lambda: len(buffer.beats) > beats + 3)
        assert buffer.trajectories == []
        meeting.publish(2)
        await buffer.until(lambda: len(buffer.trajectories) == 2)
        await buffer.until(lambda: buffer.stats.episodes == 2)
    assert {int(version) for trajectory in buffer.trajectories for version in trajectory.versions} == {2}
    assert buffer.stats.version == 2


async def test_newer_weights_are_adopted_on_a_hint_and_versions_between_are_skipped(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path)
    buffer = meeting.buffer
    meeting.publish(0)
    async with acting(meeting):
        await buffer.until(lambda: len(buffer.requests) == 1)
        buffer.grant(0)
        await buffer.until(lambda: len(buffer.trajectories) == 1)
        for version in (1, 2, 3):
            meeting.publish(version)
        buffer.version = 3
        await buffer.until(lambda: buffer.stats.version == 3)
    assert buffer.stats.adoptions == 2


async def test_deterministic_actors_ask_for_whole_updates(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path, deterministic=True)
    buffer = meeting.buffer
    meeting.publish(0)
    async with acting(meeting):
        await buffer.until(lambda: len(buffer.requests) == 1)
        buffer.grant(0, 1, 2, 3)
        await buffer.until(lambda: len(buffer.requests) == 2)
        await buffer.until(lambda: len(buffer.trajectories) == 4)
    assert [(request.capacity, request.minimum) for request in buffer.requests] == [(4, 4), (4, 4)]


async def test_stop_ends_the_actor_at_once(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path, max_steps=10_000, steps=10_000)
    buffer = meeting.buffer
    meeting.publish(0)
    async with acting(meeting) as actor:
        await buffer.until(lambda: len(buffer.requests) == 1)
        buffer.grant(0, 1)
        await buffer.until(lambda: buffer.stats.rows > 0)
        buffer.send(protocol.Stop(reason="done"))
        await asyncio.wait_for(actor, 2)
    assert buffer.trajectories == []


async def test_a_silent_buffer_ends_the_actor_with_its_address(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path)
    meeting.buffer.answers_beats = False
    async with serving(meeting):
        with pytest.raises(RunError, match=r"the buffer at tcp://127\.0\.0\.1:\d+ has been silent for 0 s"):
            await asyncio.wait_for(meeting.act(dataclasses.replace(TIMING, silence_s=0.3)), 5)


async def test_a_buffer_that_does_not_answer_ends_the_actor(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path)
    meeting.buffer.answers_hello = False
    async with serving(meeting):
        with pytest.raises(RunError, match=r"did not answer within 0\.2 s"):
            await meeting.act(Timing(welcome_s=0.2))


async def test_a_refusal_ends_the_actor_with_its_reason(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path)
    buffer = meeting.buffer
    async with serving(meeting):
        actor = asyncio.create_task(meeting.act())
        await buffer.until(lambda: len(buffer.beats) == 1)
        buffer.send(protocol.Refused(reason="another run"))
        with pytest.raises(RunError, match="refused actor-0: another run"):
            await asyncio.wait_for(actor, 5)


async def test_weights_of_another_model_end_the_actor(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path)
    buffer = meeting.buffer
    meeting.store.publish(0, 3, {"stranger": tiny_model().state_dict()["model.norm.weight"]})
    async with serving(meeting):
        actor = asyncio.create_task(meeting.act())
        await buffer.until(lambda: len(buffer.requests) == 1)
        buffer.grant(0)
        with pytest.raises(RunError, match="weights of version 0 do not fit the actor's model: stranger is unknown"):
            await asyncio.wait_for(actor, 5)
