"""Made-up trajectories and random tiny models for the learner's tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from async_agent_rl.protocol import Trajectory, TrajectoryDone, TurnInfo

VOCABULARY = 97


@dataclasses.dataclass(frozen=True)
class Turn:
    """One step, as a test writes it."""

    prompt: Sequence[int]
    action: Sequence[int]
    reward: float = 0.0
    state_key: str = "s"
    observation_key: str = "o"
    format_ok: bool = True
    is_admissible: bool = True
    logprob: float = -1.0


def make_trajectory(turns: Sequence[Turn], group: int = 0, member: int = 0, version: int = 0) -> Trajectory:
    infos = [
        TurnInfo(
            num_prompt_tokens=len(turn.prompt),
            num_action_tokens=len(turn.action),
            reward=turn.reward,
            state_key=turn.state_key,
            observation_key=turn.observation_key,
            action="look",
            format_ok=turn.format_ok,
            is_admissible=turn.is_admissible,
        )
        for turn in turns
    ]
    actions = np.array([token for turn in turns for token in turn.action], dtype=np.int32)
    won = any(turn.reward > 0 for turn in turns)
    header = TrajectoryDone(
        lease_id=group * 1000 + member,
        group=group,
        member=member,
        attempt=0,
        task_index=group,
        actor="actor-0",
        incarnation=0,
        kv_policy="fresh_prompt_per_step",
        turns=infos,
        won=won,
        score=float(won),
        truncated=False,
        started_s=1.0,
        finished_s=2.0,
    )
    return Trajectory(
        header=header,
        prompt_ids=np.array([token for turn in turns for token in turn.prompt], dtype=np.int32),
        action_ids=actions,
        logprobs=np.repeat([turn.logprob for turn in turns], [len(turn.action) for turn in turns]).astype(np.float32),
        versions=np.full(len(actions), version, dtype=np.int32),
    )


def random_groups(seed: int, num_groups: int = 2, size: int = 4, version: int = 0) -> list[Trajectory]:
    """Groups whose members share their first prompt and, by chance, later prompts and responses; mixed rewards."""
    rng = np.random.default_rng(seed)
    result = []
    for group in range(num_groups):
        first = rng.integers(0, VOCABULARY, rng.integers(6, 14)).tolist()
        later = [rng.integers(0, VOCABULARY, rng.integers(6, 20)).tolist() for _ in range(2)]
        for member in range(size):
            turns = []
            for step in range(int(rng.integers(1, 4))):
                page = int(rng.integers(0, 2))
                action = rng.integers(0, 3 if step == 0 else VOCABULARY, rng.integers(1, 4)).tolist()
                prompt = first if step == 0 else later[page]
                turns.append(Turn(prompt, action, state_key="start" if step == 0 else f"page{page}", logprob=-4.5))
            turns[-1] = dataclasses.replace(turns[-1], reward=float(rng.choice([0.0, 10.0])), format_ok=member != 1)
            result.append(make_trajectory(turns, group, member, version))
    return result


def tiny_model(kind: str = "qwen2", seed: int = 0, dtype: torch.dtype = torch.float32, layers: int = 2) -> Any:
    """A random causal LM of a few thousand parameters whose distributions are far from uniform."""
    from transformers import (  # seconds to import
        Gemma2Config,
        Gemma2ForCausalLM,
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
    )

    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    torch.manual_seed(seed)
    if kind == "gpt2":
        model: Any = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=layers, n_head=4))
    elif kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    elif kind == "gemma2":
        model = Gemma2ForCausalLM(Gemma2Config(**sizes, head_dim=8, final_logit_softcapping=2.0, sliding_window=8))
    else:
        model = Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=True))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return model.to(dtype).eval()


def tiny_tokenizer() -> Any:
    """One word a token: `w0` .. `w96`."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    make: Any = PreTrainedTokenizerFast  # untyped
    return make(tokenizer_object=words, eos_token="w1", pad_token="w1")
