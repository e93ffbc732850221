"""Small real things for tests: a random one-layer model folder with a byte-level tokenizer, and a world to play in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from async_agent_rl.env import Observation, Split, StepResult, Task
from async_agent_rl.errors import EnvError
from async_agent_rl.model_files import save_model

EOS_ID = 256
PAD_ID = 257
VOCABULARY = 258


def tiny_tokenizer() -> Any:
    """One token a byte, plus an end and a padding token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    make: Any = PreTrainedTokenizerFast  # untyped
    return make(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")


def tiny_model(seed: int = 0) -> Any:
    """Random Qwen2 of one layer and 16 dimensions, spread wide enough that its answers differ."""
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.4,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
        bos_token_id=None,
    )
    torch.manual_seed(seed)
    model: Any = Qwen2ForCausalLM(config)
    return model.eval()


def build_tiny_model(folder: Path, seed: int = 0) -> Path:
    """Write a whole Hugging Face folder and return it."""
    path = folder / "model"
    save_model(path, tiny_model(seed), tiny_tokenizer())
    return path


class EvenWorld:
    """Task i is won by an answer whose length is even; the page counts the answers so far.

    Options: `steps` until an episode is done (2), `broken`: the tasks whose environment breaks at its first step.
    """

    world_id = "even"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.steps = int(options.get("steps", 2))
        self.broken = set(options.get("broken", ()))

    def num_tasks(self, split: Split) -> int:
        return {"train": 40, "validation": 12, "test": 8}[split]

    def new_env(self) -> EvenEnv:
        return EvenEnv(self)


class EvenEnv:
    """One episode of EvenWorld."""

    def __init__(self, world: EvenWorld) -> None:
        self._world = world
        self._answers: list[str] = []
        self._index = 0
        self.is_closed = False

    async def reset(self, task: Task) -> Observation:
        self._index = task.index
        return self._look()

    async def step(self, response: str) -> StepResult:
        if self._index in self._world.broken:
            raise EnvError(f"task {self._index} is broken")
        self._answers.append(response)
        even = len(response) % 2 == 0
        return StepResult(
            observation=self._look(),
            reward=1.0 if even else 0.0,
            done=len(self._answers) == self._world.steps,
            action="even[]" if even else "odd[]",
            is_admissible=even,
            won=even,
            score=0.5 if even else 0.25,
        )

    async def close(self) -> None:
        self.is_closed = True

    def _look(self) -> Observation:
        page = f"task {self._index} step {len(self._answers)}"
        prompts = (page + "." * 40, page)
        return Observation(prompts=prompts, text=page, state_key=page)
