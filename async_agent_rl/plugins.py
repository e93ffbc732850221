"""Loading a world by name, so that the pipeline never imports an environment."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar, cast

from async_agent_rl.config import EnvSection
from async_agent_rl.env import World
from async_agent_rl.errors import AsyncAgentRLError, ConfigError

T = TypeVar("T")


def load_world(env: EnvSection) -> World:
    """Import `env.target` and construct the world with its options.

    The current directory is importable, so one file beside the person is enough.

    Raises:
        ConfigError: the module or class does not exist or is no world.
        InputError: the world refuses its options or its data.
    """
    return guarded(env.target, lambda: _load_world(env))


def guarded(target: str, call: Callable[[], T]) -> T:
    """Run a person's own code before the run starts; what it raises becomes one sentence with file and line.

    Raises:
        ConfigError: whatever went wrong there; errors of ours pass as they are.
    """
    try:
        return call()
    except AsyncAgentRLError:
        raise
    except Exception as error:  # it is not our code, so any error may come out of it
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = (
            f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else f"{last.filename}:{last.lineno}"
        )
        raise ConfigError(f"env={target}: {type(error).__name__}: {error} ({place})") from error


def _load_world(env: EnvSection) -> World:
    module_name, _, class_name = env.target.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise ConfigError(
                f"env={env.target}: there is no module {error.name!r} in {os.getcwd()} or on the Python path"
            ) from error
        raise
    factory = cast("Callable[[dict[str, Any]], World] | None", getattr(module, class_name, None))
    if factory is None:
        raise ConfigError(f"env={env.target}: module {module_name} has no {class_name!r}")
    world = factory(env.world_options())
    missing = [name for name in ("num_tasks", "new_env") if not callable(getattr(world, name, None))]
    if missing:
        raise ConfigError(f"env={env.target}: {class_name} is no world, it lacks {' and '.join(missing)}")
    return world
