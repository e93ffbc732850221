"""The learner role: `python -m learner.main ROLE_FILE`. Started by the launcher."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from async_agent_rl.role_main import run_role
from learner.loop import run_learner


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done or stopped, 1 the run failed, 2 bad input."""
    return run_role(sys.argv[1:] if argv is None else argv, run_learner)


if __name__ == "__main__":
    sys.exit(main())
