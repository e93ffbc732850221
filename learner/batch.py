"""A batch of complete groups as rows: one row per environment step, its tokens and what GiGPO needs to know of it.

Checks once what can be wrong with trajectories; everything behind it trusts the arrays. Knows nothing of models,
advantages or sockets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from async_agent_rl import seeds
from async_agent_rl.errors import ProtocolError
from async_agent_rl.policy import FloatArray, IntArray
from async_agent_rl.protocol import Trajectory, TurnInfo

_LOGPROB_SLACK = 1e-3
"""A log-probability may exceed 0 by rounding, not by more than this."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """R rows with T response tokens in all, in the order group, member, step of the trajectories they came from.

    Token arrays are flat: the tokens of row i are [offsets[i], offsets[i + 1]).
    """

    prompt_ids: tuple[IntArray, ...]
    """R times [P_i] int32, P_i >= 1."""
    action_ids: tuple[IntArray, ...]
    """R times [A_i] int32, A_i >= 1."""
    offsets: NDArray[np.int64]
    """[R + 1]; offsets[R] = T."""
    behaviour_logprobs: FloatArray
    """[T] float32, nats, of the distribution that was sampled from."""
    versions: IntArray
    """[T] int32."""
    groups: NDArray[np.int64]
    """[R] group number."""
    trajectories: NDArray[np.int64]
    """[R] position of the row's trajectory in the batch."""
    steps: NDArray[np.int64]
    """[R] 0-based step inside the trajectory."""
    rewards: NDArray[np.float64]
    """[R] training reward of the step, without penalty."""
    invalid: NDArray[np.bool_]
    """[R] the penalty applies."""
    anchors: tuple[str, ...]
    """R state keys; comparable inside one group only."""

    @property
    def num_rows(self) -> int:
        return len(self.prompt_ids)

    @property
    def num_tokens(self) -> int:
        return int(self.offsets[-1])

    def token_counts(self) -> NDArray[np.int64]:
        """[R] response tokens of each row."""
        return np.diff(self.offsets)


def build_rows(
    trajectories: Sequence[Trajectory],
    penalize: Literal["format", "admissible"],
    anchor: Literal["state", "observation"],
    correction: Literal["decoupled", "none"],
) -> Rows:
    """Lay the turns of all trajectories out as rows.

    Args:
        trajectories: at least one, group by group.
        penalize: format: a broken form is invalid; admissible: an action the page does not offer as well.
        anchor: which of the two keys of a turn is compared.
        correction: of the off-policy weight; all but `none` need behaviour log-probs.

    Raises:
        ProtocolError: no trajectory, a turn without prompt or response tokens, or behaviour log-probs that are
            missing (NaN), infinite or positive while `correction` needs them.
    """
    if not trajectories:
        raise ProtocolError("a batch without trajectories cannot be trained on")
    turns: list[TurnInfo] = []
    prompts: list[IntArray] = []
    actions: list[IntArray] = []
    places: list[tuple[int, int, int]] = []
    for position, trajectory in enumerate(trajectories):
        if correction != "none":
            _require_logprobs(trajectory)
        for step, (turn, prompt, action, _, _) in enumerate(trajectory.turn_arrays()):
            if not len(prompt) or not len(action):
                raise ProtocolError(
                    f"{_name(trajectory)}, step {step}: {len(prompt)} prompt and {len(action)} response tokens, "
                    f"a turn needs at least one of each"
                )
            turns.append(turn)
            prompts.append(prompt)
            actions.append(action)
            places.append((trajectory.header.group, position, step))
    groups, positions, steps = np.array(places, dtype=np.int64).T
    return Rows(
        prompt_ids=tuple(prompts),
        action_ids=tuple(actions),
        offsets=np.concatenate([[0], np.cumsum([len(action) for action in actions])]).astype(np.int64),
        behaviour_logprobs=np.concatenate([trajectory.logprobs for trajectory in trajectories]),
        versions=np.concatenate([trajectory.versions for trajectory in trajectories]),
        groups=groups,
        trajectories=positions,
        steps=steps,
        rewards=np.array([turn.reward for turn in turns], dtype=np.float64),
        invalid=np.array([_is_invalid(turn, penalize) for turn in turns], dtype=np.bool_),
        anchors=tuple(turn.state_key if anchor == "state" else turn.observation_key for turn in turns),
    )


def mini_batches(rows: Rows, mini_batch_rows: int, run_seed: int, version: int, epoch: int) -> list[NDArray[np.int64]]:
    """Cut all rows, shuffled by counter, into parts of nearly `mini_batch_rows` whose sizes differ by at most 1.

    What is shuffled are the prompts; rows with the same prompt stay side by side. So the actions that were compared
    with each other are mostly trained in the same step, and the decoder reads their prompt once.

    Returns:
        Row indices; each row stands in exactly one part. The number of parts is the nearest one, at least 1.
    """
    by_prompt: dict[bytes, list[int]] = {}
    for row, prompt in enumerate(rows.prompt_ids):
        by_prompt.setdefault(prompt.tobytes(), []).append(row)
    blocks = list(by_prompt.values())
    order = seeds.generator(run_seed, seeds.Purpose.MINIBATCH, version, epoch).permutation(len(blocks))
    shuffled = np.concatenate([blocks[number] for number in order]).astype(np.int64)
    num_parts = max(1, round(rows.num_rows / mini_batch_rows))
    return np.array_split(shuffled, min(rows.num_rows, num_parts))


def _is_invalid(turn: TurnInfo, penalize: Literal["format", "admissible"]) -> bool:
    return not turn.format_ok or (penalize == "admissible" and not turn.is_admissible)


def _require_logprobs(trajectory: Trajectory) -> None:
    usable = np.isfinite(trajectory.logprobs) & (trajectory.logprobs <= _LOGPROB_SLACK)
    if not usable.all():
        first = int(np.flatnonzero(~usable)[0])
        raise ProtocolError(
            f"{_name(trajectory)}: behaviour log-prob of response token {first} is {trajectory.logprobs[first]}; "
            f"an engine that gives none needs offpolicy.correction=none"
        )


def _name(trajectory: Trajectory) -> str:
    header = trajectory.header
    return f"group {header.group} member {header.member} (lease {header.lease_id}, actor {header.actor})"
