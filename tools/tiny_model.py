"""The tiny policy in plain torch: configuration, initial weights, a lean forward pass, saving as a Hugging Face folder.

The module tree and parameter names are those of transformers' Qwen2ForCausalLM, so its state dict loads there as it is
and gives the same numbers; this version only skips the masks, hooks and full-sequence logits that cost most of the
time at this size. Knows nothing of tokens' meanings, demonstrations or training.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True, kw_only=True)
class TinyShape:
    """Sizes of the model; the defaults are 0.3 M parameters with a vocabulary of about 1,000."""

    vocab_size: int
    hidden_size: int = 64
    intermediate_size: int = 160
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int = 2
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    max_positions: int = 2048

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


KeyValues = list[tuple[Tensor, Tensor]]
"""Per layer: keys and values, each [B, num_kv_heads, S, head_dim] float32, already rotated."""


class RmsNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, shape: TinyShape) -> None:
        super().__init__()
        self.shape = shape
        kv_size = shape.num_kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.k_proj = nn.Linear(shape.hidden_size, kv_size)
        self.v_proj = nn.Linear(shape.hidden_size, kv_size)
        self.o_proj = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor, Tensor] | None) -> Any:
        batch, length, _ = x.shape
        q, k, v = (
            projection(x).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = _rotate(q, rope), _rotate(k, rope)
        if past is None:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            keys, values, mask = past
            k, v = torch.cat((keys, k), dim=2), torch.cat((values, v), dim=2)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1)), (k, v)


class Mlp(nn.Module):
    def __init__(self, shape: TinyShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Any:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: TinyShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape)
        self.input_layernorm = RmsNorm(shape.hidden_size, shape.norm_eps)
        self.post_attention_layernorm = RmsNorm(shape.hidden_size, shape.norm_eps)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor, Tensor] | None) -> Any:
        attended, cache = self.self_attn(self.input_layernorm(x), rope, past)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), cache


class Body(nn.Module):
    def __init__(self, shape: TinyShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.norm = RmsNorm(shape.hidden_size, shape.norm_eps)

    def blocks(self) -> list[Layer]:
        """The layers, with their type."""
        return [cast(Layer, layer) for layer in self.layers]


class TinyQwen2(nn.Module):
    """Decoder with tied embeddings. One owner, one device (CPU), float32."""

    def __init__(self, shape: TinyShape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        frequencies = shape.rope_theta ** -(torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim)
        angles = torch.outer(torch.arange(shape.max_positions, dtype=torch.float32), frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.cos: Tensor
        self.sin: Tensor

    def hidden(self, ids: Tensor) -> tuple[Tensor, KeyValues]:
        """States after the last norm for right-padded rows; padding never reaches earlier positions.

        Args:
            ids: [B, L] int64.

        Returns:
            [B, L, hidden_size] float32, and the keys and values of every layer.
        """
        length = ids.shape[1]
        rope = self.cos[:length], self.sin[:length]
        x = self.model.embed_tokens(ids)
        caches: KeyValues = []
        for layer in self.model.blocks():
            x, cache = layer(x, rope, None)
            caches.append(cache)
        return self.model.norm(x), caches

    def extend(self, ids: Tensor, positions: Tensor, caches: KeyValues, mask: Tensor) -> tuple[Tensor, KeyValues]:
        """One more token per row.

        Args:
            ids: [B, 1] int64.
            positions: [B] int64, the token's position in its row.
            caches: keys and values so far, S columns.
            mask: [B, 1, 1, S + 1] bool, True where the row may look.

        Returns:
            [B, 1, hidden_size] float32 and the longer caches.
        """
        rope = self.cos[positions][:, None, None, :], self.sin[positions][:, None, None, :]
        x = self.model.embed_tokens(ids)
        longer: KeyValues = []
        for layer, (keys, values) in zip(self.model.blocks(), caches, strict=True):
            x, cache = layer(x, rope, (keys, values, mask))
            longer.append(cache)
        return self.model.norm(x), longer

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., hidden_size] -> [..., vocab_size] float32; call it at the positions that matter only."""
        return F.linear(hidden, self.model.embed_tokens.weight)


def _rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rope
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def initialise(model: TinyQwen2, seed: int) -> None:
    """Weights from which copying is learned in minutes instead of hours (mimetic initialisation, in place).

    Layer 0's first key/value head looks at the last two tokens, through the biases alone. In layers 1 and 2 the first
    head asks for what that head wrote, so "what followed this token before?" is almost there at the start. All other
    heads start by looking at tokens like their own, and every value/output pair adds a little of what it read.
    """
    rng = torch.Generator().manual_seed(seed)
    blocks = model.model.blocks()
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(0.0, 0.05, generator=rng)
        for layer in blocks:
            # Small, so that what attention writes is not drowned in noise.
            layer.mlp.gate_proj.weight.normal_(0.0, 0.05, generator=rng)
            layer.mlp.up_proj.weight.normal_(0.0, 0.05, generator=rng)
            layer.mlp.down_proj.weight.normal_(0.0, 0.01, generator=rng)
            _start_content_heads(layer.self_attn, rng)
        _start_previous_token_heads(blocks[0].self_attn, rng)
        for layer in blocks[1:3]:
            _start_induction_heads(layer.self_attn, blocks[0].self_attn)


def _orthonormal(rows: int, columns: int, rng: torch.Generator) -> Tensor:
    """[rows, columns] float32 with orthonormal rows (rows <= columns)."""
    square: Tensor = torch.linalg.qr(torch.randn(columns, rows, generator=rng))[0]
    return square.T.contiguous()


def _start_content_heads(attention: Attention, rng: torch.Generator) -> None:
    shape = attention.shape
    dim, per_kv = shape.head_dim, shape.num_heads // shape.num_kv_heads
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        projection.bias.zero_()
    for kv_head in range(shape.num_kv_heads):
        rows = slice(kv_head * dim, (kv_head + 1) * dim)
        match = 1.4 * _orthonormal(dim, shape.hidden_size, rng)
        read = _orthonormal(dim, shape.hidden_size, rng)
        attention.k_proj.weight[rows] = match
        attention.v_proj.weight[rows] = read
        for head in range(kv_head * per_kv, (kv_head + 1) * per_kv):
            columns = slice(head * dim, (head + 1) * dim)
            attention.q_proj.weight[columns] = match
            attention.o_proj.weight[:, columns] = 0.04 * read.T


def _start_previous_token_heads(attention: Attention, rng: torch.Generator) -> None:
    shape = attention.shape
    dim, half, sharpness = shape.head_dim, shape.head_dim // 2, 6.0
    frequencies = shape.rope_theta ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    attention.k_proj.weight[:dim] = 0.0
    attention.k_proj.bias[:half] = sharpness
    # What is written must be told apart from what is read: an orthogonal subspace.
    both = _orthonormal(2 * dim, shape.hidden_size, rng)
    attention.v_proj.weight[:dim] = both[:dim]
    for head in range(shape.num_heads // shape.num_kv_heads):
        rows = slice(head * dim, (head + 1) * dim)
        attention.q_proj.weight[rows] = 0.0
        # The score at distance d is the sum of cos((d - back) f) over the frequencies f: largest at d = back. The
        # first head looks one token back, the second two.
        back = head + 1
        attention.q_proj.bias[rows] = sharpness * torch.cat(((back * frequencies).cos(), -(back * frequencies).sin()))
        attention.o_proj.weight[:, rows] = 0.04 * both[dim:].T


def _start_induction_heads(attention: Attention, first: Attention) -> None:
    shape, dim = attention.shape, attention.shape.head_dim
    written = first.o_proj.weight[:, :dim].T / first.o_proj.weight[:, :dim].norm(dim=0)[:, None]
    attention.k_proj.weight[:dim] = 1.4 * written
    for head in range(shape.num_heads // shape.num_kv_heads):
        attention.q_proj.weight[head * dim : (head + 1) * dim] = 1.4 * first.v_proj.weight[:dim]


def save_model(model: TinyQwen2, eos_id: int, pad_id: int, folder: pathlib.Path) -> None:
    """Write config.json, generation_config.json and model.safetensors, readable by AutoModelForCausalLM."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = model.shape
    config = Qwen2Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=shape.max_positions,
        rms_norm_eps=shape.norm_eps,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        bos_token_id=None,
        eos_token_id=eos_id,
        pad_token_id=pad_id,
        dtype="float32",
    )
    full: Any = Qwen2ForCausalLM(config)
    missing, unexpected = full.load_state_dict(model.state_dict(), strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise RuntimeError(f"the tiny model's names differ from transformers': {missing=} {unexpected=}")
    full.tie_weights()
    full.save_pretrained(str(folder))
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it readable by the owner only


def load_model(folder: pathlib.Path) -> TinyQwen2:
    """Read back what `save_model` wrote."""
    from safetensors.torch import load_file
    from transformers import Qwen2Config

    config: Any = Qwen2Config.from_pretrained(str(folder))
    model = TinyQwen2(
        TinyShape(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            rope_theta=float(config.rope_parameters["rope_theta"]),
            norm_eps=config.rms_norm_eps,
            max_positions=config.max_position_embeddings,
        )
    )
    weights = load_file(str(folder / "model.safetensors"))
    model.load_state_dict({name: value for name, value in weights.items() if name != "lm_head.weight"})
    return model
