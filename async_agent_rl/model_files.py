"""Reading and writing Hugging Face causal-LM folders, the one model format of the project.

torch and transformers are imported only by the functions that need them. Never reaches for the network.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from async_agent_rl.errors import InputError
from async_agent_rl.layout import project_root

if TYPE_CHECKING:
    import torch

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


def resolve_model_path(text: str) -> Path:
    """The folder `model.path` names: from the current directory, else from the project's root.

    Raises:
        InputError: there is no such folder, or it lacks a config, a tokenizer or weights.
    """
    candidates = [Path(text).expanduser(), project_root() / text]
    path = next((candidate for candidate in candidates if candidate.is_dir()), None)
    if path is None:
        raise InputError(f"model.path={text}: no such folder; it must hold a Hugging Face causal LM")
    if not (path / "config.json").is_file():
        raise InputError(f"model.path={text}: the folder has no config.json, so it is no Hugging Face model")
    if not any((path / name).is_file() for name in _TOKENIZER_FILES):
        raise InputError(f"model.path={text}: the folder has no tokenizer.json; save the tokenizer beside the weights")
    if not any(path.glob("*.safetensors")):
        raise InputError(f"model.path={text}: the folder has no *.safetensors weights")
    return path


def load_tokenizer(path: Path) -> Any:
    """The folder's tokenizer; its pad token falls back to the end token."""
    from transformers import AutoTokenizer  # seconds to import

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InputError(f"model.path={path}: its tokenizer cannot be loaded: {error}") from error
    if tokenizer.eos_token_id is None:
        raise InputError(f"model.path={path}: its tokenizer has no end-of-sequence token (eos_token)")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token_id = tokenizer.eos_token_id
    return tokenizer


def load_model(path: Path, dtype: str = "float32") -> Any:
    """The folder's causal LM in eval mode.

    Args:
        path: from `resolve_model_path`.
        dtype: "float32" or "bfloat16".
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM  # seconds to import
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]  # stderr is for what a person must read
    try:
        loaded = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise InputError(f"model.path={path}: the model cannot be loaded: {error}") from error
    return cast("torch.nn.Module", loaded).eval()


def save_model(path: Path, model: Any, tokenizer: Any) -> None:
    """Write a whole Hugging Face folder, or nothing: a temporary folder beside it, then a rename.

    Raises:
        OSError: the disk refuses; the temporary folder is gone then.
    """
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        for file in temporary.iterdir():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def num_parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
