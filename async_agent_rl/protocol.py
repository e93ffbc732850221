"""The messages between the roles, and how they become ZeroMQ frames.

A message is one MessagePack frame (a tagged struct) followed by raw little-endian array frames where it carries
token data. Any MessagePack reader can read the first frame. Knows nothing of sockets, torch or who sends what when.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import msgspec
import numpy as np

from async_agent_rl.errors import DropReason, FailureKind, ProtocolError
from async_agent_rl.policy import FloatArray, IntArray

PROTOCOL_VERSION = 1
Frame = bytes | memoryview

Role = Literal["actor", "learner", "launcher"]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """Base of all messages; the struct's name is its tag."""


class Hello(Message, frozen=True, kw_only=True):
    """Any role -> buffer, first message of a connection."""

    role: Role
    name: str
    run_id: str
    protocol: int = PROTOCOL_VERSION


class Welcome(Message, frozen=True, kw_only=True):
    """Buffer -> role: the connection is accepted."""

    version: int
    incarnation: int


class Refused(Message, frozen=True, kw_only=True):
    """Buffer -> role: foreign run or protocol; the role ends."""

    reason: str


class LeaseRequest(Message, frozen=True, kw_only=True):
    """Actor -> buffer: it has room. Answered by LeaseGrant as soon as anything may be granted."""

    capacity: int
    """Episodes the actor could start now."""
    minimum: int = 1
    """Answer only when this many can be granted at once (deterministic runs; else 1)."""


class Lease(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The right and duty to play one member of a group."""

    lease_id: int
    group: int
    """Number of the group in lease order, 0-based, never reused."""
    member: int
    """In [0, G)."""
    attempt: int
    """0, or how many times this member has failed before."""
    task_index: int
    seed: int
    """Seed of this episode's sampling and environment; the same for every attempt."""


class LeaseGrant(Message, frozen=True, kw_only=True):
    """Buffer -> actor."""

    leases: list[Lease]
    version: int
    """Newest published version; the actor adopts it before its next environment step."""


class VersionHint(Message, frozen=True, kw_only=True):
    """Buffer -> everyone, over PUB. Only a hint: lease replies and acks carry the version too."""

    version: int


class TurnInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One environment step of a trajectory; its token arrays lie in the trajectory's frames."""

    num_prompt_tokens: int
    num_action_tokens: int
    reward: float
    """Training reward paid for this step, without any penalty."""
    state_key: str
    """Of the state the action was taken in."""
    observation_key: str
    """Formatted page text the action was taken on."""
    action: str
    format_ok: bool
    is_admissible: bool
    response_cut: bool = False
    """The response hit the token limit."""
    history_dropped: int = 0
    """History records left out to fit the token budget."""
    prompt_cut: bool = False
    """Even without history the prompt was too long and lost its middle."""


class TrajectoryDone(Message, frozen=True, kw_only=True):
    """Actor -> buffer, followed by four array frames. Answered by Ack."""

    lease_id: int
    group: int
    member: int
    attempt: int
    task_index: int
    actor: str
    incarnation: int
    kv_policy: str
    turns: list[TurnInfo]
    won: bool
    score: float
    """Task score in [0, 1]."""
    truncated: bool
    """Cut off at env.max_steps."""
    started_s: float
    finished_s: float
    """time.time() of the actor."""


class LeaseFailed(Message, frozen=True, kw_only=True):
    """Actor -> buffer: the lease ends without a trajectory. Answered by Ack."""

    lease_id: int
    kind: FailureKind
    detail: str


class Ack(Message, frozen=True, kw_only=True):
    """Buffer -> actor: the lease's end is recorded; the actor may forget it."""

    lease_id: int
    version: int


class ActorStats(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counters since the actor started."""

    rows: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    episodes: int = 0
    wins: int = 0
    busy_s: float = 0.0
    """Seconds in which the engine was computing."""
    lease_wait_s: float = 0.0
    """Seconds in which the engine was idle because no lease was granted."""
    env_wait_s: float = 0.0
    """Seconds in which the engine was idle because every live episode was in its environment."""
    adoptions: int = 0
    in_flight: int = 0
    version: int = 0


class Heartbeat(Message, frozen=True, kw_only=True):
    """Actor -> buffer, a few times a second."""

    stats: ActorStats


class BatchRequest(Message, frozen=True, kw_only=True):
    """Learner -> buffer: B complete groups, please. Answered by Batch when they are there."""

    version: int
    """Version of the weights that will consume them."""
    num_groups: int


class BufferStats(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counters at the moment a batch was handed over."""

    groups_ready: int
    groups_in_flight: int
    groups_issued: int
    groups_dropped: dict[str, int]
    """DropReason -> groups."""
    leases_failed: dict[str, int]
    """FailureKind -> leases."""
    duplicates: int
    admission_blocked_s: float
    """Seconds in which an actor had room and the staleness bound alone refused it."""
    actors: dict[str, ActorStats]


class Batch(Message, frozen=True, kw_only=True):
    """Buffer -> learner, followed by, for each trajectory, its TrajectoryDone frame and four array frames.

    Trajectories stand group by group in training order, members ascending.
    """

    groups: list[int]
    group_size: int
    stats: BufferStats
    version: int = -1
    """Of the request this answers. A repeated request can cross its answer, which then comes twice: a batch whose
    version is not the learner's own, or whose groups it has dropped, is such an echo and is let go."""


class Trained(Message, frozen=True, kw_only=True):
    """Learner -> buffer: `groups` are part of `version`, which is published. Answered by nothing."""

    version: int
    groups: list[int]


class Dropped(Message, frozen=True, kw_only=True):
    """Learner -> buffer: groups it will not train on."""

    groups: list[int]
    reason: DropReason


class Stop(Message, frozen=True, kw_only=True):
    """Buffer -> everyone, or launcher -> buffer: the run ends."""

    reason: str


AnyMessage = (
    Hello
    | Welcome
    | Refused
    | LeaseRequest
    | LeaseGrant
    | VersionHint
    | TrajectoryDone
    | LeaseFailed
    | Ack
    | Heartbeat
    | BatchRequest
    | Batch
    | Trained
    | Dropped
    | Stop
)

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: AnyMessage) -> bytes:
    """The message's first frame."""
    return _ENCODER.encode(message)


def decode(frame: Frame) -> AnyMessage:
    """Read a first frame.

    Raises:
        ProtocolError: not MessagePack, an unknown tag, a wrong type or an unknown field.
    """
    try:
        return _DECODER.decode(frame)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ProtocolError(f"message of {len(frame)} bytes cannot be read: {error}") from error


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """One finished episode: its header and the tokens of all its turns, laid end to end."""

    header: TrajectoryDone
    prompt_ids: IntArray
    """[sum of num_prompt_tokens] int32."""
    action_ids: IntArray
    """[sum of num_action_tokens] int32."""
    logprobs: FloatArray
    """[sum of num_action_tokens] float32: log-prob of each action token when it was sampled."""
    versions: IntArray
    """[sum of num_action_tokens] int32."""

    def __post_init__(self) -> None:
        prompts = sum(turn.num_prompt_tokens for turn in self.header.turns)
        actions = sum(turn.num_action_tokens for turn in self.header.turns)
        lengths = (len(self.prompt_ids), len(self.action_ids), len(self.logprobs), len(self.versions))
        if not self.header.turns or lengths != (prompts, actions, actions, actions):
            raise ProtocolError(
                f"trajectory of lease {self.header.lease_id}: arrays of {lengths} tokens, "
                f"its {len(self.header.turns)} turns announce {(prompts, actions, actions, actions)}"
            )

    @property
    def reward(self) -> float:
        """Sum of the training rewards, without penalties."""
        return float(sum(turn.reward for turn in self.header.turns))

    @property
    def oldest_version(self) -> int:
        return int(self.versions.min())

    def turn_arrays(self) -> Iterator[tuple[TurnInfo, IntArray, IntArray, FloatArray, IntArray]]:
        """For each turn: its info, prompt ids [P], action ids [A], log-probs [A], versions [A] (views)."""
        prompt_end = action_end = 0
        for turn in self.header.turns:
            prompt_start, action_start = prompt_end, action_end
            prompt_end += turn.num_prompt_tokens
            action_end += turn.num_action_tokens
            span = slice(action_start, action_end)
            prompt = self.prompt_ids[prompt_start:prompt_end]
            yield turn, prompt, self.action_ids[span], self.logprobs[span], self.versions[span]


FRAMES_PER_TRAJECTORY = 5


def trajectory_frames(trajectory: Trajectory) -> list[Frame]:
    """Header frame and four array frames, without copying the arrays."""
    arrays = (trajectory.prompt_ids, trajectory.action_ids, trajectory.logprobs, trajectory.versions)
    return [encode(trajectory.header), *(np.ascontiguousarray(array).data.cast("B") for array in arrays)]


def read_trajectory(frames: Sequence[Frame]) -> Trajectory:
    """Inverse of `trajectory_frames`; the arrays are read-only views of the frames.

    Raises:
        ProtocolError: wrong number of frames, wrong header, or lengths that contradict it.
    """
    if len(frames) != FRAMES_PER_TRAJECTORY:
        raise ProtocolError(f"a trajectory has {FRAMES_PER_TRAJECTORY} frames, got {len(frames)}")
    header = decode(frames[0])
    if not isinstance(header, TrajectoryDone):
        raise ProtocolError(f"expected TrajectoryDone, got {type(header).__name__}")
    if any(len(frame) % 4 for frame in frames[1:]):
        raise ProtocolError(f"trajectory of lease {header.lease_id}: an array frame is no multiple of 4 bytes")
    prompt_ids, action_ids, versions = (np.frombuffer(frames[i], dtype="<i4") for i in (1, 2, 4))
    logprobs = np.frombuffer(frames[3], dtype="<f4")
    return Trajectory(header, prompt_ids, action_ids, logprobs, versions)


class Dated(Protocol):
    """Anything that knows the oldest version of its tokens: a Trajectory, or what the buffer keeps of one."""

    @property
    def oldest_version(self) -> int: ...


def staleness(consumed_at: int, trajectories: Sequence[Dated]) -> int:
    """Staleness of a group: version at consumption minus the oldest version of any of its tokens."""
    return consumed_at - min(trajectory.oldest_version for trajectory in trajectories)
