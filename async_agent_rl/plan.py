"""What a run will do, in figures, before it does it: batches, tokens, memory, disk, effective staleness."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from async_agent_rl.config import Config
from async_agent_rl.errors import InputError
from async_agent_rl.run_folder import largest_size_bytes

_BYTES = {"float32": 4, "bfloat16": 2}


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a Hugging Face config.json the plan needs; others are ignored."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int | None = None
    vocab_size: int

    @property
    def kv_bytes_per_token(self) -> int:
        """At four bytes a number."""
        head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        return 2 * self.num_hidden_layers * (self.num_key_value_heads or self.num_attention_heads) * head_dim * 4


def read_model_shape(path: Path) -> ModelShape:
    """Raises InputError when config.json is broken or lacks a size."""
    try:
        return msgspec.json.decode((path / "config.json").read_bytes(), type=ModelShape)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InputError(f"model.path={path}: its config.json cannot be used: {error}") from error


def weight_bytes(path: Path) -> int:
    """Size of the folder's safetensors files."""
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))


def check_lengths(config: Config, shape: ModelShape) -> None:
    """Raises InputError when prompt plus response do not fit the model's positions."""
    needed = config.model.max_prompt_tokens + config.model.max_response_tokens
    if shape.max_position_embeddings is not None and needed > shape.max_position_embeddings:
        raise InputError(
            f"model.max_prompt_tokens={config.model.max_prompt_tokens} plus model.max_response_tokens="
            f"{config.model.max_response_tokens} exceed the model's {shape.max_position_embeddings} positions"
        )


def describe_plan(
    config: Config, model: str, shape: ModelShape | None, model_bytes: int, num_tasks: dict[str, int]
) -> list[str]:
    """The plan as lines for people.

    Args:
        config: of the run.
        model: the folder's name as given.
        shape: None when the model is not on this machine; memory is then left out.
        model_bytes: of its weights; 0 with `shape` None.
        num_tasks: split -> tasks.
    """
    batch = config.trajectories_per_update
    rows = batch * config.env.max_steps
    tokens = rows * (config.model.max_prompt_tokens + config.model.max_response_tokens)
    steps = max(1, round(rows / config.learner.mini_batch_rows)) * config.learner.epochs
    lines = [
        f"mode         {config.mode}, {_staleness(config)}",
        f"tasks        {', '.join(f'{split} {count}' for split, count in num_tasks.items())}",
        f"update       {config.train.groups_per_update} groups x {config.group.size} = {batch} trajectories, at most "
        f"{config.env.max_steps} steps each",
        f"             at most {rows} rows, {tokens / 1e6:.2f} M tokens, {steps} optimizer steps",
        f"run          {config.train.updates} updates = {config.train.updates * batch} trajectories; checkpoint every "
        f"{config.checkpoint.every}",
        f"roles        1 buffer, 1 learner ({_threads(config.learner.threads)}), {config.actors.num} actor(s) x "
        f"{config.actors.slots} episodes ({_threads(config.actors.threads)} each)",
    ]
    if shape is None:
        lines.append(f"model        {model}: not on this machine; memory unknown")
    else:
        lines += _memory(config, model, shape, model_bytes)
    panel = min(config.evaluation.n, num_tasks.get("validation", 0))
    if config.group.size == 1:
        lines.append("warning      group.size=1: a try has no others to be compared with, so hardly anything is learnt")
    if panel == 0:
        lines.append("evaluation   none")
    elif panel < config.evaluation.n:
        lines.append(f"evaluation   {panel} tasks, the whole validation split (evaluation.n={config.evaluation.n})")
    else:
        lines.append(
            f"evaluation   {panel} validation tasks before and after, T={config.evaluation.temperature}"
            f"{' and greedy' if config.evaluation.greedy else ''}"
        )
    return lines


def _staleness(config: Config) -> str:
    bound = config.effective_staleness
    if bound == 0:
        return "effective staleness 0: trains only on data of the current version"
    ahead = bound * config.train.groups_per_update
    return f"effective staleness at most {bound} updates: actors may be {ahead} groups ahead of the learner"


def _threads(count: int) -> str:
    return f"{count or os.cpu_count()} torch thread(s)"


def _memory(config: Config, model: str, shape: ModelShape, model_bytes: int) -> list[str]:
    parameters = model_bytes / _BYTES[config.model.dtype]
    copies = 2 + 2 + (1 if config.learner.kl_coef > 0 else 0)  # weights, gradients, two Adam moments, reference
    learner = copies * model_bytes
    length = config.model.max_prompt_tokens + config.model.max_response_tokens
    cache = config.actors.max_batch * length * shape.kv_bytes_per_token * _BYTES[config.model.dtype] // 4
    logits = config.learner.micro_batch_rows * config.model.max_response_tokens * shape.vocab_size * 4 * 3
    disk = largest_size_bytes(config, model_bytes)
    return [
        f"model        {model}: {parameters / 1e6:.2f} M parameters, {config.model.dtype}",
        f"memory       learner {_megabytes(learner)} for weights, gradients and Adam, {_megabytes(logits)} for logits; "
        f"each actor {_megabytes(model_bytes)} + at most {_megabytes(cache)} cache",
        f"disk         run folder at most {_megabytes(disk)} (run.max_size_mb={config.run.max_size_mb})",
    ]


def _megabytes(count: float) -> str:
    return f"{count / 1e6:.0f} MB"
