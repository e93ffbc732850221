"""Log-probs (and entropies) of response tokens under a Hugging Face causal LM.

Three ways through the model, the fastest one that this model computes correctly: shared prompts under a tree mask,
one row per sequence, and the model's own full logits. Which one is right is found out at the start by comparing with
plain forward passes, not assumed from the architecture's name. Knows nothing of losses, advantages or optimizers.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from typing import Any

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from async_agent_rl.errors import InputError
from learner.batch import Rows
from learner.losses import entropy
from learner.packing import PROMPT_SEGMENT, MicroBatch, pack

log = structlog.get_logger()

_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
_HALF_TOLERANCE = 0.15
"""bfloat16 keeps 8 bits: differently ordered sums differ by about this much in a log-prob."""


class Layout(enum.Enum):
    """How rows become sequences, and which logits are computed."""

    SHARED_PROMPTS = "shared_prompts"
    """Decoder with a tree mask, output head at response positions only."""
    SEPARATE_ROWS = "separate_rows"
    """Decoder with the causal mask on right-padded rows, output head at response positions only."""
    FULL_LOGITS = "full_logits"
    """The model's own logits at every position of right-padded rows."""


@dataclasses.dataclass(frozen=True)
class TokenScores:
    """Of the tokens of one micro-batch, in its order; [T] float32 each."""

    logprobs: Tensor
    """Of the tempered distribution, nats."""
    entropy: Tensor | None
    """Of the distribution each token was drawn from, nats; None unless asked for."""


class TokenScorer:
    """Scores micro-batches with one model. The model is read at each call, so it may be trained in between."""

    def __init__(self, model: Any, temperature: float, layout: Layout | None = None) -> None:
        """
        Args:
            model: a transformers causal LM (PreTrainedModel); put into eval mode, so dropout is off.
            temperature: logits are divided by it; above 0.
            layout: None finds the fastest right one (four small forward passes).

        Raises:
            InputError: even the model's own logits change with padding behind a row.
        """
        self._model: nn.Module = model.eval()
        self._decoder: nn.Module = model.get_decoder()
        self._head: nn.Module = model.get_output_embeddings()
        self._temperature = temperature
        self._device: torch.device = next(self._model.parameters()).device
        self._dtype: torch.dtype = next(self._model.parameters()).dtype
        self.layout = _fastest_right_layout(self, model) if layout is None else layout

    def micro_batches(self, rows: Rows, selected: NDArray[np.int64], max_rows: int) -> list[MicroBatch]:
        """Micro-batches fit for this model; see `pack`."""
        return pack(rows, selected, max_rows, share_prompts=self.layout is Layout.SHARED_PROMPTS)

    def score(self, batch: MicroBatch, *, with_entropy: bool = False) -> TokenScores:
        """Log-probs of the micro-batch's tokens, with gradient if gradients are on."""
        states = self._to_device(batch.states)
        if self.layout is Layout.FULL_LOGITS:
            output = self._model(input_ids=self._to_device(batch.input_ids), use_cache=False)
            logits = output.logits.flatten(0, 1)[states]
        else:
            logits = self._head(self._hidden(batch).flatten(0, 1)[states])
        logits = logits.float()
        if self._temperature != 1.0:
            logits = logits / self._temperature
        distribution = torch.log_softmax(logits, dim=-1)  # [U, V]
        state = self._to_device(batch.token_state)
        logprobs = distribution[state, self._to_device(batch.token_target)]
        return TokenScores(logprobs, entropy(distribution)[state] if with_entropy else None)

    def score_all(self, rows: Rows, selected: NDArray[np.int64], max_rows: int) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies of the selected rows' tokens, without gradient.

        Returns:
            [T] float32 each, in the flat order of `rows`; NaN at tokens of rows that were not selected.
        """
        logprobs = torch.full((rows.num_tokens,), torch.nan, device=self._device)
        entropies = torch.full_like(logprobs, torch.nan)
        with torch.inference_mode():
            for batch in self.micro_batches(rows, selected, max_rows):
                scores = self.score(batch, with_entropy=True)
                places = self._to_device(batch.token_index)
                logprobs[places] = scores.logprobs
                if scores.entropy is not None:
                    entropies[places] = scores.entropy
        return logprobs, entropies

    def _hidden(self, batch: MicroBatch) -> Tensor:
        """[S, L, D] last hidden states. Padding stands behind every row, where a causal model cannot see it."""
        ids = self._to_device(batch.input_ids)
        if batch.is_plain:  # no mask at all: the attention kernels' own causal path is the fastest
            output = self._decoder(input_ids=ids, use_cache=False)
        else:
            output = self._decoder(
                input_ids=ids,
                attention_mask=tree_mask(self._to_device(batch.segments), self._dtype),
                position_ids=self._to_device(batch.positions),
                use_cache=False,
            )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def _to_device(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)


def tree_mask(segments: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive attention mask of sequences whose responses share a prompt.

    Args:
        segments: [S, L] as in `MicroBatch.segments`.
        dtype: of the decoder.

    Returns:
        [S, 1, L, L]: 0 where a token may look (the prompt and its own segment, not ahead), the smallest number of
        `dtype` elsewhere. Padding sees itself, so that no row of the softmax is empty.
    """
    length = segments.shape[1]
    own = segments[:, :, None] == segments[:, None, :]
    prompt = segments[:, None, :] == PROMPT_SEGMENT
    behind = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    visible = (own | prompt) & behind
    hidden = torch.finfo(dtype).min
    return torch.zeros(visible.shape, dtype=dtype, device=segments.device).masked_fill_(~visible, hidden).unsqueeze(1)


# --- which layout is right for this model ---------------------------------------------------------------------------


def _fastest_right_layout(scorer: TokenScorer, model: Any) -> Layout:
    """Try the layouts from fast to slow on rows that share prompts and differ in length."""
    rows = _probe_rows(int(model.get_input_embeddings().weight.shape[0]))
    everything = np.arange(rows.num_rows)
    with torch.inference_mode():
        expected = _plain_logprobs(scorer, rows)
        tolerance = _TOLERANCE.get(scorer._dtype, _HALF_TOLERANCE)
        for layout in Layout:
            if layout is Layout.SHARED_PROMPTS and not _takes_positions(scorer._decoder):
                continue
            scorer.layout = layout
            try:
                got, _ = scorer.score_all(rows, everything, max_rows=rows.num_rows)
            except (TypeError, ValueError, RuntimeError, AttributeError) as error:  # what a foreign model may raise
                log.warning("logprob_layout_refused", layout=layout.value, error=str(error))
                continue
            difference = float((got - expected).abs().max())
            if difference <= tolerance:
                log.info("logprob_layout", layout=layout.value, max_difference=difference)
                return layout
            log.warning("logprob_layout_wrong", layout=layout.value, max_difference=difference)
    raise InputError(
        f"model of class {type(model).__name__}: the log-probs of a row change when padding stands behind it, "
        f"so it cannot be trained here; a causal LM is needed"
    )


def _takes_positions(decoder: nn.Module) -> bool:
    return "position_ids" in inspect.signature(decoder.forward).parameters


def _plain_logprobs(scorer: TokenScorer, rows: Rows) -> Tensor:
    """[T] by the book: one row at a time, no padding, all logits."""
    parts = []
    for prompt, action in zip(rows.prompt_ids, rows.action_ids, strict=True):
        ids = torch.from_numpy(np.concatenate([prompt, action]).astype(np.int64)).to(scorer._device)
        logits = scorer._model(input_ids=ids[None], use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        distribution = torch.log_softmax(logits / scorer._temperature, dim=-1)
        parts.append(distribution.gather(1, ids[len(prompt) :, None]).squeeze(1))
    return torch.cat(parts)


def _probe_rows(vocabulary: int) -> Rows:
    """Five rows: three responses to one prompt, two of them beginning alike, and two other prompts."""

    def tokens(start: int, count: int) -> NDArray[np.int32]:
        return ((start + 7 * np.arange(count)) % vocabulary).astype(np.int32)

    prompts = (tokens(3, 19), tokens(3, 19), tokens(3, 19), tokens(5, 8), tokens(11, 27))
    actions = (tokens(1, 5), tokens(1, 3), tokens(2, 6), tokens(4, 4), tokens(9, 1))
    offsets = np.concatenate([[0], np.cumsum([len(action) for action in actions])]).astype(np.int64)
    numbers = np.arange(len(prompts), dtype=np.int64)
    return Rows(
        prompt_ids=prompts,
        action_ids=actions,
        offsets=offsets,
        behaviour_logprobs=np.zeros(int(offsets[-1]), dtype=np.float32),
        versions=np.zeros(int(offsets[-1]), dtype=np.int32),
        groups=numbers,
        trajectories=numbers,
        steps=np.zeros_like(numbers),
        rewards=np.zeros(len(prompts)),
        invalid=np.zeros(len(prompts), dtype=np.bool_),
        anchors=("",) * len(prompts),
    )
