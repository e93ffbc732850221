"""What the launcher tells a role: one JSON file a role, named on its command line.

Knows nothing of what a role does.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from async_agent_rl.config import Config
from async_agent_rl.errors import InputError


class RoleSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a role needs to start. Written as <run_dir>/roles/<name>.json."""

    name: str
    """`buffer`, `learner`, `actor-0`, ...: also its log file and its identity on the wire."""
    run_id: str
    run_dir: str
    incarnation: int
    config: Config
    num_train_tasks: int
    buffer_address: str = ""
    """Where the buffer's ROUTER listens, e.g. tcp://127.0.0.1:41001; empty in the buffer's own file."""
    hint_address: str = ""
    """Where the buffer's PUB listens."""
    launcher_pid: int = 0
    """The role ends when this process is gone."""


def write_role_spec(spec: RoleSpec) -> Path:
    path = Path(spec.run_dir) / "roles" / f"{spec.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(spec), indent=1))
    return path


def read_role_spec(path: str) -> RoleSpec:
    """Raises InputError when the file is missing or not a role file."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=RoleSpec)
    except OSError as error:
        raise InputError(
            f"role file {path} cannot be read: {error.strerror}; roles are started by the launcher"
        ) from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InputError(f"role file {path} is damaged: {error}") from error
