"""A broker without sockets or a clock of its own, for tests: what its peers send and get, message by message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from async_agent_rl import protocol
from async_agent_rl.buffer.broker import Broker, Outgoing
from async_agent_rl.config import (
    ActorsSection,
    BufferSection,
    Config,
    GroupSection,
    StalenessSection,
    TrainSection,
)
from async_agent_rl.protocol import AnyMessage, Frame, Lease
from async_agent_rl.roles import RoleSpec

M = TypeVar("M", bound=protocol.Message)


def new_spec(
    *,
    run_dir: str = "/nowhere",
    per_update: int = 2,
    group_size: int = 2,
    max_staleness: int = 1,
    updates: int = 50,
    slots: int = 8,
    max_failures: int = 3,
    deadline_s: float = 1000.0,
    buffer: BufferSection | None = None,
) -> RoleSpec:
    config = Config(
        group=GroupSection(size=group_size, max_failures=max_failures, deadline_s=deadline_s),
        train=TrainSection(groups_per_update=per_update, updates=updates),
        staleness=StalenessSection(max=max_staleness),
        actors=ActorsSection(slots=slots),
        buffer=buffer or BufferSection(),
    )
    return RoleSpec(name="buffer", run_id="run-1", run_dir=run_dir, incarnation=0, config=config, num_train_tasks=7)


def trajectory_of(lease: Lease, actor: str, version: int, **changes: Any) -> list[Frame]:
    """Two turns: 3 + 1 prompt tokens, 2 + 1 action tokens."""
    turns = [
        protocol.TurnInfo(
            num_prompt_tokens=prompts,
            num_action_tokens=actions,
            reward=1.0,
            state_key="s",
            observation_key="o",
            action="x",
            format_ok=True,
            is_admissible=True,
        )
        for prompts, actions in ((3, 2), (1, 1))
    ]
    header = protocol.TrajectoryDone(
        lease_id=lease.lease_id,
        group=lease.group,
        member=lease.member,
        attempt=lease.attempt,
        task_index=lease.task_index,
        actor=actor,
        incarnation=0,
        kv_policy="none",
        turns=turns,
        won=True,
        score=1.0,
        truncated=False,
        started_s=0.0,
        finished_s=1.0,
    )
    arrays = {
        "prompt_ids": np.arange(4, dtype=np.int32),
        "action_ids": np.arange(3, dtype=np.int32),
        "logprobs": np.full(3, -0.5, dtype=np.float32),
        "versions": np.full(3, version, dtype=np.int32),
    }
    arrays |= {name: value for name, value in changes.items() if name in arrays}
    header = msgspec.structs.replace(header, **{k: v for k, v in changes.items() if k not in arrays})
    return [protocol.encode(header), *(array.tobytes() for array in arrays.values())]


class Wire:
    """A broker, a clock, and what it sent to whom."""

    def __init__(self, **spec: Any) -> None:
        self.broker = Broker(new_spec(**spec))
        self.now_s = 0.0
        self.sent: list[tuple[str | None, list[Frame]]] = []
        self.hello("learner")

    def put(self, peer: str, frames: Sequence[Frame]) -> None:
        self._keep(self.broker.handle(peer, frames, self.now_s))

    def say(self, peer: str, message: AnyMessage) -> None:
        self.put(peer, [protocol.encode(message)])

    def tick(self, seconds: float = 0.0, is_drained: bool = True) -> None:
        self.now_s += seconds
        self._keep(self.broker.tick(self.now_s, is_drained))

    def _keep(self, outbox: Sequence[Outgoing]) -> None:
        self.sent += [(outgoing.peer, list(outgoing.frames)) for outgoing in outbox]
        self.broker.table.check_conservation()

    def hello(self, name: str, **changes: Any) -> None:
        role = name.split("-")[0]
        assert role in ("actor", "learner", "launcher")
        hello = protocol.Hello(role="actor", name=name, run_id="run-1")
        self.say(name, msgspec.structs.replace(hello, role=role, **changes))

    def take(self, peer: str | None, kind: type[M]) -> list[M]:
        """Messages of that kind sent to that peer since last asked, oldest first."""
        taken: list[M] = []
        kept = []
        for to, frames in self.sent:
            message = protocol.decode(frames[0])
            if to == peer and isinstance(message, kind):
                taken.append(message)
            else:
                kept.append((to, frames))
        self.sent = kept
        return taken

    def lease(self, actor: str, capacity: int) -> list[Lease]:
        self.say(actor, protocol.LeaseRequest(capacity=capacity))
        return [lease for grant in self.take(actor, protocol.LeaseGrant) for lease in grant.leases]

    def finish(self, actor: str, leases: Sequence[Lease], version: int = 0) -> None:
        for lease in leases:
            self.put(actor, trajectory_of(lease, actor, version))

    def ask(self, version: int, num_groups: int = 2) -> list[int] | None:
        """Groups of the batch that is delivered at once, or None."""
        self.say("learner", protocol.BatchRequest(version=version, num_groups=num_groups))
        batches = self.take("learner", protocol.Batch)
        return batches[-1].groups if batches else None

    def trained(self, version: int, groups: list[int]) -> None:
        self.say("learner", protocol.Trained(version=version, groups=groups))
