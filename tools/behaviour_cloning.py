"""Supervised training of the tiny policy on the shopper's demonstrations: rows, batches, optimizer steps.

Only the response is trained. Short rows come first, because copying is learned by the number of optimizer steps, not
of tokens; and in every row the ASIN syllables are exchanged by a random permutation, so that copying from the page is
the only way to name a product. Knows nothing of the shop or of how demonstrations came about.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from tools.shopper import Demonstration, Skill
from tools.tiny_model import TinyQwen2
from tools.tiny_tokenizer import EncodeText

SEPARATOR = " [SEP] "
_PRODUCT_SEGMENTS = 3
"""ASIN, title, price."""

Ids = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One demonstration as ids."""

    skill: Skill
    prompt: Ids
    """[P] int64."""
    response: Ids
    """[R] int64, the end-of-sequence id included."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """One stretch of training with the same kind of rows."""

    name: str
    steps: int
    batch_size: int
    learning_rates: tuple[float, float]
    """At the first and the last step, linear in between."""
    warm_up_steps: int = 0
    stop_below: float = 0.0
    """The stage ends early when the mean loss (nats per token) since the last report is below this."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """What the trainer tells while it works."""

    stage: str
    step: int
    loss: float
    """Mean nats per response token since the last report."""
    seconds: float
    """Since the stage began."""


def make_row(demonstration: Demonstration, prompt: str, encode: EncodeText, eos_id: int) -> Row:
    """The demonstration with `prompt` in place of its own (the same, or a cut one)."""
    return Row(
        skill=demonstration.skill,
        prompt=np.array(encode(prompt), dtype=np.int64),
        response=np.array([*encode(demonstration.response), eos_id], dtype=np.int64),
    )


def cut_prompt(demonstration: Demonstration, num_products: int) -> str:
    """The prompt with less of the page: task, deeds and actions stay, results keep their first `num_products`.

    An item page loses all it shows: which option is wanted stands in the task.
    """
    segments = demonstration.prompt.split(SEPARATOR)
    task, done, *page, actions = segments
    if demonstration.skill is Skill.PRODUCT:
        first = next(index for index, text in enumerate(page) if text.endswith(" >")) + 1
        page = page[first - 1 : first + _PRODUCT_SEGMENTS * num_products]
    elif demonstration.skill is not Skill.SEARCH:
        page = []
    return SEPARATOR.join((task, done, *page, actions))


class BatchMaker:
    """Endless batches of rows of similar length, every row equally often."""

    def __init__(
        self, rows: Sequence[Row], batch_size: int, syllables: Sequence[int], rng: np.random.Generator, blur: float = 8
    ):
        """Remember the rows.

        Args:
            rows: at least `batch_size`.
            batch_size: rows per batch.
            syllables: ids that are permuted among themselves, differently in every row.
            rng: of this maker alone.
            blur: tokens by which the lengths within a batch may differ; 1000 mixes everything.
        """
        if len(rows) < batch_size:
            raise ValueError(f"a batch of {batch_size} needs as many rows, got {len(rows)}")
        self._rows = rows
        self._batch_size = batch_size
        self._syllables = np.array(syllables, dtype=np.int64)
        self._rng = rng
        self._blur = blur

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Pairs of ids [B, L] int64, right-padded with 0, and targets [B, L] int64: the next id, -100 untrained."""
        while True:
            lengths = np.array([len(row.prompt) + len(row.response) for row in self._rows])
            # A little noise in the length keeps rows of equal length from always meeting the same neighbours.
            order = np.argsort(lengths + self._rng.uniform(0, self._blur, len(lengths)), kind="stable")
            batches = [order[i : i + self._batch_size] for i in range(0, len(order), self._batch_size)]
            for number in self._rng.permutation(len(batches)):
                yield self._collate([self._rows[int(index)] for index in batches[int(number)]])

    def _collate(self, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
        width = max(len(row.prompt) + len(row.response) for row in rows)
        ids = np.zeros((len(rows), width), dtype=np.int64)
        targets = np.full((len(rows), width), -100, dtype=np.int64)
        for number, row in enumerate(rows):
            line = self._permute(np.concatenate((row.prompt, row.response)))
            ids[number, : len(line)] = line
            targets[number, len(row.prompt) - 1 : len(line) - 1] = line[len(row.prompt) :]
        return torch.from_numpy(ids), torch.from_numpy(targets)

    def _permute(self, line: Ids) -> Ids:
        if not len(self._syllables):
            return line
        table = np.arange(max(int(line.max()), int(self._syllables.max())) + 1)
        table[self._syllables] = self._rng.permutation(self._syllables)
        return table[line]


def response_loss(model: TinyQwen2, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy (nats) over the response tokens; logits are computed at those positions only."""
    hidden, _ = model.hidden(ids)
    trained = targets >= 0
    return F.cross_entropy(model.logits(hidden[trained]), targets[trained])


class Trainer:
    """AdamW over the stages of a curriculum; keeps its moments from stage to stage."""

    def __init__(self, model: TinyQwen2, weight_decay: float = 0.01) -> None:
        self._model = model
        matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
        others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)

    def run(
        self, stage: Stage, batches: BatchMaker, report: Callable[[Progress], None], report_every: int = 100
    ) -> None:
        """Train for at most `stage.steps` optimizer steps."""
        began = time.monotonic()
        first, last = stage.learning_rates
        losses: list[float] = []
        for step, (ids, targets) in zip(range(1, stage.steps + 1), batches, strict=False):
            rate = first + (last - first) * (step - 1) / max(stage.steps - 1, 1)
            for group in self._optimizer.param_groups:
                group["lr"] = rate * min(1.0, step / max(stage.warm_up_steps, 1))
            loss = response_loss(self._model, ids, targets)
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
            self._optimizer.step()
            losses.append(loss.item())
            if step % report_every == 0 or step == stage.steps:
                mean = sum(losses) / len(losses)
                report(Progress(stage=stage.name, step=step, loss=mean, seconds=time.monotonic() - began))
                losses.clear()
                if mean < stage.stop_below:
                    return


def exact_share(model: TinyQwen2, rows: Sequence[Row], batch_size: int = 64) -> dict[Skill, float]:
    """Per skill, the share of rows whose whole response is the most likely one token by token (teacher-forced)."""
    hits: dict[Skill, list[bool]] = {}
    ordered = sorted(rows, key=lambda row: len(row.prompt))
    maker = BatchMaker(ordered, 1, (), np.random.default_rng(0))
    for start in range(0, len(ordered), batch_size):
        chunk = ordered[start : start + batch_size]
        ids, targets = maker._collate(chunk)
        with torch.no_grad():
            hidden, _ = model.hidden(ids)
            trained = targets >= 0
            right = torch.ones_like(targets, dtype=torch.bool)
            right[trained] = model.logits(hidden[trained]).argmax(-1) == targets[trained]
        for row, ok in zip(chunk, right.all(dim=1).tolist(), strict=True):
            hits.setdefault(row.skill, []).append(ok)
    return {skill: sum(marks) / len(marks) for skill, marks in sorted(hits.items())}
