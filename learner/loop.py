"""The learner's loop: groups in, versions out.

    publish version 0 -> [ wait for B complete groups -> update -> publish -> report -> metrics ] until done -> stop

Who waits for whom: the learner waits for the buffer to have B complete groups; actors wait, through the buffer's
admission, for the learner's versions. In sync mode the same loop runs with a staleness bound of 0, which makes each
wait for the other in turn. Knows nothing of sockets, gradients or environments.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import structlog
import torch
from torch import Tensor, nn

from async_agent_rl import model_files
from async_agent_rl.errors import DropReason, RunError
from async_agent_rl.metrics import metrics_path
from async_agent_rl.roles import RoleSpec
from async_agent_rl.run_folder import EPISODE_FILE_BYTES, EPISODE_FILES, WEIGHT_VERSIONS_KEPT, RunFolder
from async_agent_rl.weights import WeightStore
from learner.batch import Rows, build_rows
from learner.checkpoint import CheckpointStore, TrainerState
from learner.client import BufferClient
from learner.episodes import EpisodeLog, first_row_of
from learner.intake import ReceivedBatch
from learner.measurement import Measurement
from learner.update import PolicyUpdater, UpdateOutcome, UpdateStats

log = structlog.get_logger()

_MOST_DROPPED_IN_A_ROW = 3
_MISMATCH_ALARM = 0.05
"""Mean |pi_prox - pi_b| at equal weights, nats, above which sampler and learner do not compute the same model."""


def run_learner(spec: RoleSpec, stop: threading.Event) -> None:
    """Load the model, train until done or stopped, leave a checkpoint.

    Raises:
        InputError: the model folder cannot be used.
        RunError: buffer lost, disk full, or updates that will not become finite.
    """
    config = spec.config
    torch.set_num_threads(config.learner.threads or os.cpu_count() or 1)
    torch.use_deterministic_algorithms(config.run.deterministic)
    path = model_files.resolve_model_path(config.model.path)
    tokenizer = model_files.load_tokenizer(path)
    model = model_files.load_model(path, config.model.dtype)
    with BufferClient(spec.buffer_address, spec.run_id, spec.name, config.group.size) as client:
        TrainingLoop(spec, model, tokenizer, client, stop).run()


def distinct_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The model's state without second names of tied tensors (the first name, e.g. the input embedding's, stays)."""
    seen: set[tuple[int, torch.Size]] = set()
    result = {}
    for name, tensor in model.state_dict().items():
        place = (tensor.data_ptr(), tensor.shape)
        if tensor.numel() and place in seen:
            continue
        seen.add(place)
        result[name] = tensor
    return result


class TrainingLoop:
    """One run of the learner, from version 0."""

    def __init__(self, spec: RoleSpec, model: Any, tokenizer: Any, client: BufferClient, stop: threading.Event) -> None:
        config = spec.config
        folder = RunFolder(Path(spec.run_dir))
        self._spec = spec
        self._config = config
        self._model = model
        self._tokenizer = tokenizer
        self._client = client
        self._stop = stop
        self._updater = PolicyUpdater(model, config)
        self._weights = WeightStore(folder.weights, max(WEIGHT_VERSIONS_KEPT, config.effective_staleness + 2))
        self._checkpoints = CheckpointStore(folder.checkpoints, config.checkpoint.keep)
        self._episodes = EpisodeLog(folder.path, tokenizer, EPISODE_FILE_BYTES, EPISODE_FILES)
        self._measurement = Measurement()
        self._version = 0
        self._dropped_in_a_row = 0
        self._is_mismatch_known = False

    def run(self) -> None:
        """Train to the last update, or until the stop event or the buffer ends the run."""
        self._save_checkpoint()
        self._publish()
        if self._client.connect(self._stop) is not None:
            self._measurement.start()
            while self._version < self._config.train.updates and not self._stop.is_set():
                if not self._one_update():
                    break
        self._save_checkpoint()
        is_done = self._version >= self._config.train.updates
        self._client.send_stop("all updates are done" if is_done else f"the learner ended at version {self._version}")
        log.info("training_ended", version=self._version, is_done=is_done)

    def _one_update(self) -> bool:
        """Wait for groups and train on them once; False when the run is to end."""
        batch = self._fresh_batch()
        if batch is None:
            return False
        started_s = time.monotonic()
        rows = build_rows(
            batch.trajectories,
            self._config.learner.penalize,
            self._config.gigpo.anchor,
            self._config.offpolicy.correction,
        )
        outcome = self._updater.update(rows, self._version, self._stop.is_set)
        if outcome.status == "abandoned":
            return False
        if outcome.stats is None:
            self._drop_non_finite(batch)
            return True
        self._dropped_in_a_row = 0
        self._check_mismatch(rows, outcome.stats)
        self._version += 1
        self._publish()
        self._client.report_trained(self._version, batch.numbers)
        log.info("update_done", version=self._version, groups=batch.numbers, loss=outcome.stats.loss)
        self._record(batch, rows, outcome, outcome.stats, time.monotonic() - started_s)
        if self._version % self._config.checkpoint.every == 0:
            self._save_checkpoint()
        return True

    def _fresh_batch(self) -> ReceivedBatch | None:
        """B complete groups within the staleness bound, whatever the buffer thinks; None when the run is to end."""
        bound = self._config.effective_staleness
        while True:
            batch = self._client.next_batch(self._version, self._config.train.groups_per_update, self._stop)
            if batch is None:
                return None
            over_age = [group.number for group in batch.groups if group.staleness(self._version) > bound]
            if not over_age:
                self._measurement.batch_arrived(batch)
                log.info("batch_received", version=self._version, groups=batch.numbers)
                return batch
            log.warning("groups_too_stale", version=self._version, groups=over_age, bound=bound)
            self._client.report_dropped(over_age, DropReason.TOO_STALE)

    def _drop_non_finite(self, batch: ReceivedBatch) -> None:
        """The weights are as before; the batch that broke the update is never trained on again."""
        self._dropped_in_a_row += 1
        log.error("update_not_finite", version=self._version, groups=batch.numbers, in_a_row=self._dropped_in_a_row)
        self._client.report_dropped(batch.numbers, DropReason.NON_FINITE_UPDATE)
        if self._dropped_in_a_row >= _MOST_DROPPED_IN_A_ROW:
            raise RunError(
                f"{self._dropped_in_a_row} updates in a row at version {self._version} gave a loss or gradient that is "
                f"not finite; lower learner.learning_rate={self._config.learner.learning_rate:g} or look at the "
                f"rewards in episodes.jsonl"
            )

    def _check_mismatch(self, rows: Rows, stats: UpdateStats) -> None:
        """At the first batch sampled by the very weights that consume it: do actor and learner compute the same?"""
        if self._is_mismatch_known or rows.versions.min() != self._version or rows.versions.max() != self._version:
            return
        self._is_mismatch_known = True
        say = log.warning if stats.mismatch_mean > _MISMATCH_ALARM else log.info
        say("logprob_mismatch", version=self._version, mean=stats.mismatch_mean, max=stats.mismatch_max)

    def _publish(self) -> None:
        self._weights.publish(self._version, self._spec.incarnation, distinct_tensors(self._model))

    def _save_checkpoint(self) -> None:
        if self._checkpoints.has(self._version):
            return
        state = TrainerState(
            version=self._version,
            incarnation=self._spec.incarnation,
            optimizer_steps=self._updater.optimizer_steps,
        )
        path = self._checkpoints.save(state, self._model, self._tokenizer, self._updater.optimizer)
        log.info("checkpoint_saved", version=self._version, path=str(path))

    def _record(
        self, batch: ReceivedBatch, rows: Rows, outcome: UpdateOutcome, stats: UpdateStats, busy_s: float
    ) -> None:
        record = self._measurement.record(
            version=self._version,
            batch=batch,
            rows=rows,
            stats=stats,
            busy_s=busy_s,
            optimizer_steps=self._updater.optimizer_steps,
        )
        path = metrics_path(self._spec.run_dir)
        try:
            with path.open("ab") as file:
                file.write(msgspec.json.encode(record) + b"\n")
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}") from error
        shown = batch.groups[0]
        self._episodes.write_group(self._version, shown, first_row_of(rows, shown.number), outcome.advantages)
