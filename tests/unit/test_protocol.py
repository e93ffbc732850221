"""What goes over the wire comes back the same, and what is damaged is refused."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest

from async_agent_rl import protocol
from async_agent_rl.errors import ProtocolError
from async_agent_rl.protocol import TrajectoryDone, TurnInfo


def _turn(prompt: int, action: int, reward: float = 0.0) -> TurnInfo:
    return TurnInfo(
        num_prompt_tokens=prompt,
        num_action_tokens=action,
        reward=reward,
        state_key="s",
        observation_key="o",
        action="click[x]",
        format_ok=True,
        is_admissible=True,
    )


def _trajectory(version: int = 3) -> protocol.Trajectory:
    header = TrajectoryDone(
        lease_id=7,
        group=2,
        member=1,
        attempt=0,
        task_index=5,
        actor="actor-0",
        incarnation=0,
        kv_policy="fresh_prompt_per_step",
        turns=[_turn(2, 1), _turn(3, 2, reward=10.0)],
        won=True,
        score=1.0,
        truncated=False,
        started_s=1.0,
        finished_s=2.0,
    )
    return protocol.Trajectory(
        header,
        np.arange(5, dtype=np.int32),
        np.array([7, 8, 9], np.int32),
        np.array([-0.5, -1.0, -0.25], np.float32),
        np.array([version, version + 1, version + 1], np.int32),
    )


def test_a_trajectory_survives_the_wire_bit_for_bit() -> None:
    sent = _trajectory()
    got = protocol.read_trajectory([bytes(frame) for frame in protocol.trajectory_frames(sent)])
    assert got.header == sent.header
    for name in ("prompt_ids", "action_ids", "logprobs", "versions"):
        assert getattr(got, name).tobytes() == getattr(sent, name).tobytes()
        assert getattr(got, name).dtype == getattr(sent, name).dtype


def test_turns_are_cut_where_they_were_joined() -> None:
    turns = list(_trajectory().turn_arrays())
    assert [prompt.tolist() for _, prompt, *_ in turns] == [[0, 1], [2, 3, 4]]
    assert [action.tolist() for _, _, action, *_ in turns] == [[7], [8, 9]]
    assert _trajectory().reward == 10.0


def test_a_plain_msgpack_reader_can_read_a_header() -> None:
    raw = msgpack.unpackb(bytes(protocol.trajectory_frames(_trajectory())[0]))
    assert raw["type"] == "TrajectoryDone"
    assert raw["turns"][1]["reward"] == 10.0


def test_lengths_that_contradict_the_header_are_refused() -> None:
    frames = [bytes(frame) for frame in protocol.trajectory_frames(_trajectory())]
    frames[2] = frames[2][:-4]
    with pytest.raises(ProtocolError, match="lease 7"):
        protocol.read_trajectory(frames)
    with pytest.raises(ProtocolError, match="multiple of 4"):
        protocol.read_trajectory([*frames[:4], b"abc"])
    with pytest.raises(ProtocolError, match="5 frames"):
        protocol.read_trajectory(frames[:3])


@pytest.mark.parametrize("frame", [b"", b"\xc1", msgpack.packb({"type": "NoSuch"}), msgpack.packb({"type": "Ack"})])
def test_a_foreign_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        protocol.decode(frame)


def test_staleness_counts_from_the_oldest_token() -> None:
    assert protocol.staleness(6, [_trajectory(version=5), _trajectory(version=3)]) == 3
