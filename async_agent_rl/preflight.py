"""Everything that can be wrong about a run, found before any role starts."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

from async_agent_rl.config import Config
from async_agent_rl.env import SPLITS
from async_agent_rl.errors import InputError
from async_agent_rl.plan import check_lengths, describe_plan, read_model_shape, weight_bytes
from async_agent_rl.plugins import guarded, load_world
from async_agent_rl.run_folder import check_size


@dataclasses.dataclass(frozen=True)
class Plan:
    """A checked run."""

    lines: list[str]
    model_path: Path | None
    """None only in a dry run whose model is not on this machine."""
    num_train_tasks: int
    num_panel_tasks: int
    """Validation tasks each evaluation plays."""


def check_run(config: Config, *, dry_run: bool) -> Plan:
    """Open the world, look at the model folder, try the port, and put the plan into words.

    Raises:
        InputError: whatever a person has to mend, in one sentence.
    """
    model_path = _find_model(config, dry_run=dry_run)
    shape, size = None, 0
    if model_path is not None:
        shape, size = read_model_shape(model_path), weight_bytes(model_path)
        check_lengths(config, shape)
        check_size(config, size)
    world = load_world(config.env)
    num_tasks = guarded(config.env.target, lambda: {str(split): int(world.num_tasks(split)) for split in SPLITS})
    if num_tasks["train"] < 1:
        raise InputError(f"env={config.env.target}: its train split has no task")
    _check_port(config)
    lines = describe_plan(config, config.model.path, shape, size, num_tasks)
    panel = min(config.evaluation.n, num_tasks["validation"])
    return Plan(lines=lines, model_path=model_path, num_train_tasks=num_tasks["train"], num_panel_tasks=panel)


def _find_model(config: Config, *, dry_run: bool) -> Path | None:
    from async_agent_rl.model_files import resolve_model_path  # seconds to import

    if dry_run and not Path(config.model.path).exists() and not config.model.path.startswith(("/", ".", "configs/")):
        return None  # a plain name such as Qwen2.5-1.5B-Instruct: the plan holds for the machine that has it
    return resolve_model_path(config.model.path)


def _check_port(config: Config) -> None:
    """Fail early and by name; the buffer binds it for real a moment later."""
    if config.buffer.port == 0:
        return
    family = socket.AF_INET6 if ":" in config.buffer.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((config.buffer.host, config.buffer.port))
        except OSError as error:
            raise InputError(
                f"buffer.port={config.buffer.port} is in use on {config.buffer.host} ({error.strerror}); "
                f"choose another one or buffer.port=0 for any free port"
            ) from error
