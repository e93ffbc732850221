"""Whether a trajectory may be trained on: the checks of its contents that its arrays' lengths cannot show.

Knows nothing of leases and groups.
"""

from __future__ import annotations

import math

import numpy as np

from async_agent_rl.errors import ProtocolError
from async_agent_rl.protocol import Trajectory


def check_trajectory(trajectory: Trajectory, *, newest_version: int, incarnation: int) -> None:
    """Refuse what would poison an update.

    Args:
        trajectory: lengths already agree with its header.
        newest_version: newest version the buffer knows of. The next one may be on disk already, no later one can.
        incarnation: of this run.

    Raises:
        ProtocolError: a turn without prompt or action tokens, a log-prob, reward or score that is not finite, a
            version nobody published, or another incarnation.
    """
    header = trajectory.header
    fault = None
    if header.incarnation != incarnation:
        fault = f"it belongs to incarnation {header.incarnation}, this is {incarnation}"
    elif any(turn.num_prompt_tokens < 1 or turn.num_action_tokens < 1 for turn in header.turns):
        fault = "a turn has no prompt or no action tokens"
    elif not all(math.isfinite(turn.reward) for turn in header.turns) or not math.isfinite(header.score):
        fault = "a reward or the score is not a finite number"
    elif not np.isfinite(trajectory.logprobs).all():
        fault = "a log-prob is not a finite number"
    elif trajectory.versions.min() < 0 or trajectory.versions.max() > newest_version + 1:
        fault = (
            f"its versions span {trajectory.versions.min()}..{trajectory.versions.max()}, newest is {newest_version}"
        )
    if fault is not None:
        raise ProtocolError(f"trajectory of lease {header.lease_id} from {header.actor}: {fault}")
