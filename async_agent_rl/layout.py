"""Where the project's own folders lie, and the check that nobody else's folder of the same name hides them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from async_agent_rl.errors import InputError

SIBLINGS = ("actors", "learner", "envs", "tools")


def project_root() -> Path:
    """The folder that holds `async_agent_rl` and its siblings."""
    return Path(__file__).resolve().parent.parent


def config_dir() -> Path:
    return project_root() / "configs"


def check_layout() -> None:
    """Make sure `actors`, `learner`, `envs` and `tools` are ours.

    They are plain top-level packages, so a folder of the same name in the current directory would be imported in
    their place and fail in strange ways later.

    Raises:
        InputError: names the folder found, ours, and the cure.
    """
    root = project_root()
    for name in SIBLINGS:
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve().parent if spec and spec.origin else None
        if found is None and spec and spec.submodule_search_locations:
            found = Path(next(iter(spec.submodule_search_locations))).resolve()
        if found != root / name:
            raise InputError(
                f"Python finds the package {name!r} in {found or 'no folder'} instead of {root / name}: start the "
                f"command from another directory or rename that folder"
            )
