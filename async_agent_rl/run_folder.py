"""The folder of one run: its name, its fixed places, and how much it may hold.

Knows nothing of what the roles write there beyond the sizes they promise to keep.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import msgspec

from async_agent_rl import runlog
from async_agent_rl.config import Config
from async_agent_rl.errors import InputError

WEIGHT_VERSIONS_KEPT = 8
EPISODE_FILE_BYTES = 16_000_000
EPISODE_FILES = 3
_OPTIMIZER_FACTOR = 2
"""Adam keeps two numbers a parameter."""


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """Places inside <dir>/<time>-<name>/."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def weights(self) -> Path:
        return self.path / "weights"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def evaluations(self) -> Path:
        return self.path / "evaluations"

    @property
    def learning_curve(self) -> Path:
        return self.path / "learning_curve.png"


def create_run_folder(config: Config) -> RunFolder:
    """Make a new folder and save the resolved configuration in it.

    Raises:
        InputError: the folder cannot be made.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path(config.run.dir).expanduser().resolve()
    for attempt in range(100):
        suffix = f"-{attempt + 1}" if attempt else ""
        path = base / f"{stamp}-{config.run.name}{suffix}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue  # another run of the same second and name
        except OSError as error:
            raise InputError(f"run.dir={config.run.dir}: {path} cannot be made: {error.strerror}") from error
        folder = RunFolder(path)
        for part in (folder.weights, folder.checkpoints, folder.evaluations):
            part.mkdir()
        folder.config.write_bytes(resolved_yaml(config))
        return folder
    raise InputError(f"run.dir={config.run.dir}: 100 runs named {config.run.name!r} started within this second")


def resolved_yaml(config: Config) -> bytes:
    """The fully resolved configuration, readable by `--config-name FILE`."""
    return msgspec.yaml.encode(msgspec.to_builtins(config))


def largest_size_bytes(config: Config, weight_bytes: int) -> int:
    """What the run folder may grow to: kept weights and checkpoints, rotated logs and episodes.

    Args:
        config: of the run.
        weight_bytes: of one copy of the model.
    """
    roles = config.actors.num + 2
    logs = roles * runlog.FILE_BYTES * runlog.FILE_COUNT
    checkpoints = (config.checkpoint.keep + 2) * weight_bytes * (1 + _OPTIMIZER_FACTOR)
    weights = (WEIGHT_VERSIONS_KEPT + 1) * weight_bytes
    episodes = EPISODE_FILE_BYTES * EPISODE_FILES
    metrics = config.train.updates * 2_000
    return logs + checkpoints + weights + episodes + metrics


def check_size(config: Config, weight_bytes: int) -> None:
    """Raises InputError when the run could not stay below run.max_size_mb."""
    needed_mb = largest_size_bytes(config, weight_bytes) // 1_000_000 + 1
    if needed_mb > config.run.max_size_mb:
        raise InputError(
            f"run.max_size_mb={config.run.max_size_mb}: the run folder can grow to {needed_mb} MB "
            f"(weights, {config.checkpoint.keep} checkpoints, logs); raise it or lower checkpoint.keep"
        )
