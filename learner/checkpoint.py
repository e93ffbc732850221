"""Checkpoints: <run_dir>/checkpoints/v000010/, a plain Hugging Face folder with the trainer's state in `trainer/`.

A folder is complete or absent: it is written under a temporary name, synced and renamed. Knows nothing of when to
save or of how training goes on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from async_agent_rl import model_files
from async_agent_rl.errors import InputError, RunError

_TRAINER = "trainer"  # not beside the weights: some loaders take every *.safetensors of a folder for the model's
_OPTIMIZER_FILE = "optimizer.safetensors"
_STATE_FILE = "state.json"


class TrainerState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """trainer/state.json: where training stood."""

    version: int
    """Completed updates."""
    incarnation: int
    optimizer_steps: int
    """Since the start of the run."""


class CheckpointStore:
    """Writes checkpoints and keeps the newest ones, and version 0, the start policy."""

    def __init__(self, directory: Path, keep: int) -> None:
        """
        Args:
            directory: <run_dir>/checkpoints; made by the first `save`.
            keep: newest checkpoints kept, at least 1.
        """
        self._directory = directory
        self._keep = keep

    def has(self, version: int) -> bool:
        return self._folder(version).is_dir()

    def save(self, state: TrainerState, model: Any, tokenizer: Any, optimizer: torch.optim.Optimizer) -> Path:
        """Write <directory>/v<version>/, let `latest` point to it, and remove what is too old.

        Args:
            state: its version names the folder; an older folder of that name is replaced.
            model: transformers model.
            tokenizer: of the model.
            optimizer: over the model's trainable parameters, in their order.

        Raises:
            RunError: the disk refuses (full, quota, permissions); earlier checkpoints are as they were.
        """
        folder = self._folder(state.version)
        temporary = self._directory / f".{folder.name}.tmp-{os.getpid()}"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            model_files.save_model(temporary, model, tokenizer)
            trainer = temporary / _TRAINER
            trainer.mkdir()
            (trainer / _OPTIMIZER_FILE).write_bytes(safetensors.torch.save(optimizer_tensors(model, optimizer)))
            (trainer / _STATE_FILE).write_bytes(msgspec.json.encode(state))
            _sync(trainer)
            _sync(temporary)
            if folder.exists():
                shutil.rmtree(folder)
            temporary.rename(folder)
            self._point_latest_to(folder)
            _sync_folder(self._directory)
        except (OSError, safetensors.SafetensorError) as error:
            # safetensors reports a full disk as an error of its own
            cause = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            raise RunError(
                f"checkpoint of version {state.version} cannot be written to {folder}: {cause}; "
                f"earlier checkpoints are intact"
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._prune()
        return folder

    def versions(self) -> list[int]:
        """Complete checkpoints, ascending."""
        names = [path.name[1:] for path in self._directory.glob("v*") if path.is_dir()]
        return sorted(int(name) for name in names if name.isdigit())

    def _folder(self, version: int) -> Path:
        return self._directory / f"v{version:06d}"

    def _point_latest_to(self, folder: Path) -> None:
        link = self._directory / f".latest.tmp-{os.getpid()}"
        link.unlink(missing_ok=True)
        link.symlink_to(folder.name)
        os.replace(link, self._directory / "latest")

    def _prune(self) -> None:
        trained = [version for version in self.versions() if version > 0]
        for version in trained[: -self._keep]:
            shutil.rmtree(self._folder(version), ignore_errors=True)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as named tensors, `<parameter>/<entry>`; empty before its first step."""
    state = optimizer.state_dict()["state"]
    return {
        f"{name}/{entry}": value.detach().cpu().contiguous()
        for number, (name, _) in enumerate(_trainable(model))
        for entry, value in state.get(number, {}).items()
    }


def load_trainer(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainerState:
    """Put the optimizer state of a checkpoint into an optimizer over the same model.

    Raises:
        InputError: the folder holds no trainer state, a damaged one, or one of another model.
    """
    try:
        state = msgspec.json.decode((folder / _TRAINER / _STATE_FILE).read_bytes(), type=TrainerState)
        tensors = safetensors.torch.load((folder / _TRAINER / _OPTIMIZER_FILE).read_bytes())
    except OSError as error:
        raise InputError(f"checkpoint {folder}: trainer state cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, msgspec.ValidationError, safetensors.SafetensorError) as error:
        raise InputError(f"checkpoint {folder}: trainer state is damaged: {error}") from error
    numbers = {name: number for number, (name, _) in enumerate(_trainable(model))}
    entries: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, entry = key.rpartition("/")
        if name not in numbers:
            raise InputError(f"checkpoint {folder}: its optimizer knows {name}, which this model has not")
        entries.setdefault(numbers[name], {})[entry] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": entries})
    return state


def _trainable(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_file():
            with path.open("rb") as handle:
                os.fsync(handle.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
