"""The engine inside the actor's process: requests of many coroutines, answered in batches by one worker thread.

    coroutines --generate()--> pending --collect--> snapshot --plan--> batch, batch, ... --worker thread--> answers

Waits for: the first request (or, in deterministic runs, for all live episodes to have asked), then for the worker
thread. The event loop stays free, so environments, sockets and heartbeats go on; answers are handed out batch by
batch, so environments already step while the rest of a snapshot is computed. New weights are adopted between batches.
Knows nothing of episodes, leases or where weights come from.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from actors.engines.batch_decode import BatchDecoder
from actors.engines.idle_clock import IdleClock, Occupation
from async_agent_rl.errors import EngineError, RunError
from async_agent_rl.policy import Completion, GenerationRequest

KV_POLICY = "fresh_prompt_per_step"
"""No key or value outlives a batch, and weights change only between batches."""
_QUIET_TURNS = 3
"""Turns of the event loop without a new request after which a snapshot is taken: one turn lets every coroutine that
just got an answer ask again, the others are for those that pass through a task or two."""

_CLOSE_S = 1.0
"""How long `close` waits for the worker thread to notice."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineCounters:
    """Since the engine started."""

    rows: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    adoptions: int = 0
    busy_s: float = 0.0
    lease_wait_s: float = 0.0
    """Idle while no episode was live."""
    env_wait_s: float = 0.0
    """Idle while every live episode was in its environment."""


@dataclasses.dataclass
class _Pending:
    request: GenerationRequest
    answer: asyncio.Future[Completion]


class EmbeddedEngine:
    """Implements `Engine` with a Hugging Face causal LM. Create and use it inside one running event loop."""

    def __init__(
        self,
        model: Any,
        stop_ids: Collection[int],
        *,
        max_batch: int,
        threads: int,
        version: int = -1,
        deterministic: bool = False,
    ) -> None:
        """
        Args:
            model: from `model_files.load_model`; owned by the engine from now on.
            stop_ids: tokens that end an answer.
            max_batch: rows generated together at most.
            threads: torch threads of the worker.
            version: of the model's present weights; -1 = not a published version yet.
            deterministic: answer only when as many requests wait as episodes are live (`set_live`).
        """
        self._decoder = BatchDecoder(model, stop_ids, max_rows=max_batch)
        self._model = model
        self._vocabulary = int(model.get_input_embeddings().num_embeddings)
        self._deterministic = deterministic
        self._version = version
        self._staged: Mapping[str, torch.Tensor] | None = None
        self._live = 0
        self._pending: list[_Pending] = []
        self._in_hand: list[_Pending] = []
        self._wake = asyncio.Event()
        self._counters = EngineCounters()
        self._clock = IdleClock(time.perf_counter)
        self._closed = False
        self._job: asyncio.Future[list[Completion]] | None = None
        self._executor = ThreadPoolExecutor(1, "engine", initializer=torch.set_num_threads, initargs=(threads,))
        self._batcher = asyncio.create_task(self._answer_forever(), name="engine")
        self._batcher.add_done_callback(self._fail_everyone)

    @property
    def version(self) -> int:
        return self._version

    @property
    def kv_policy(self) -> str:
        return KV_POLICY

    @property
    def counters(self) -> EngineCounters:
        return dataclasses.replace(
            self._counters,
            busy_s=self._clock.seconds(Occupation.BUSY),
            lease_wait_s=self._clock.seconds(Occupation.NO_LEASE),
            env_wait_s=self._clock.seconds(Occupation.ENVIRONMENT),
        )

    def set_live(self, num_episodes: int) -> None:
        """How many episodes may ask: tells idle time apart, and in deterministic runs when a batch is complete."""
        self._live = num_episodes
        if self._clock.occupation is not Occupation.BUSY:
            self._clock.switch(self._idle_occupation())
        self._wake.set()

    def adopt(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Use these weights from the next batch on; a batch that is being computed keeps its own.

        Args:
            version: stamped on every token from then on.
            tensors: the model's parameters by name; a tied copy may be left out.

        Raises:
            RunError: names or shapes are not those of the model.
        """
        self._check_fit(version, tensors)
        self._version = version
        self._staged = tensors
        self._counters = dataclasses.replace(self._counters, adoptions=self._counters.adoptions + 1)

    async def generate(self, request: GenerationRequest) -> Completion:
        """Raises EngineError: no such tokens, the model failed, or the engine was closed."""
        if self._closed:
            raise EngineError("the engine is closed")
        ids = request.prompt_ids
        if len(ids) == 0 or request.max_tokens < 1:
            raise EngineError(f"nothing to do: {len(ids)} prompt tokens, max_tokens={request.max_tokens}")
        if int(ids.min()) < 0 or int(ids.max()) >= self._vocabulary:
            raise EngineError(f"prompt tokens span {ids.min()}..{ids.max()}, the model knows 0..{self._vocabulary - 1}")
        waiting = _Pending(request, asyncio.get_running_loop().create_future())
        self._pending.append(waiting)
        self._wake.set()
        return await waiting.answer

    async def close(self) -> None:
        """Fail whoever waits. The worker thread gives up at its next token."""
        self._closed = True
        self._decoder.abort.set()
        self._batcher.cancel()
        await asyncio.wait([self._batcher])
        self._executor.shutdown(wait=False, cancel_futures=True)
        if self._job is not None:
            await asyncio.wait([self._job], timeout=_CLOSE_S)
            if self._job.done() and not self._job.cancelled():
                self._job.exception()  # nobody else asks for it any more

    # --- the loop ----------------------------------------------------------------------------------------------

    async def _answer_forever(self) -> None:
        while True:
            await self._collect()
            snapshot = [waiting for waiting in self._pending if not waiting.answer.done()]
            self._pending.clear()
            self._in_hand = snapshot
            for indices in self._decoder.plan([waiting.request for waiting in snapshot]):
                await self._answer([snapshot[i] for i in indices])
            self._in_hand = []

    async def _collect(self) -> None:
        """Wait until a snapshot is worth taking."""
        while True:
            while not self._pending or not self._everyone_asked():
                self._wake.clear()
                await self._wake.wait()  # as long as the environments keep it waiting; their steps have deadlines
            before = len(self._pending)
            if before == self._live:
                return
            for _ in range(_QUIET_TURNS):
                await asyncio.sleep(0)
            if len(self._pending) == before and self._everyone_asked():
                return

    def _everyone_asked(self) -> bool:
        return not self._deterministic or len(self._pending) >= self._live

    async def _answer(self, batch: Sequence[_Pending]) -> None:
        """Compute one batch in the worker thread and hand its answers out."""
        batch = [waiting for waiting in batch if not waiting.answer.done()]  # its episode may have been cancelled
        if not batch:
            return
        version, staged, self._staged = self._version, self._staged, None
        self._clock.switch(Occupation.BUSY)
        requests = [waiting.request for waiting in batch]
        job = asyncio.get_running_loop().run_in_executor(self._executor, self._compute, version, staged, requests)
        self._job = job
        await asyncio.wait([job])
        self._clock.switch(self._idle_occupation())
        error = job.exception()
        if error is not None:
            self._fail(batch, error)
            return
        answers = job.result()
        self._count(answers, requests)
        for waiting, answer in zip(batch, answers, strict=True):
            if not waiting.answer.done():
                waiting.answer.set_result(answer)

    def _compute(
        self, version: int, staged: Mapping[str, torch.Tensor] | None, requests: list[GenerationRequest]
    ) -> list[Completion]:
        """In the worker thread."""
        if staged is not None:
            self._model.load_state_dict(staged, strict=False)
        return self._decoder.generate(requests, version)

    def _count(self, answers: Sequence[Completion], requests: Sequence[GenerationRequest]) -> None:
        counters = self._counters
        self._counters = dataclasses.replace(
            counters,
            rows=counters.rows + len(answers),
            prompt_tokens=counters.prompt_tokens + sum(len(request.prompt_ids) for request in requests),
            generated_tokens=counters.generated_tokens + sum(len(answer.token_ids) for answer in answers),
        )

    def _idle_occupation(self) -> Occupation:
        return Occupation.ENVIRONMENT if self._live > 0 else Occupation.NO_LEASE

    # --- failures ----------------------------------------------------------------------------------------------

    def _check_fit(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        own = self._model.state_dict()
        strangers = sorted(name for name in tensors if name not in own)
        covered = {own[name].data_ptr() for name in tensors if name in own}
        missing = sorted(name for name, tensor in own.items() if tensor.data_ptr() not in covered)
        unlike = sorted(name for name in tensors if name in own and tensors[name].shape != own[name].shape)
        for what, names in (("unknown", strangers), ("missing", missing), ("of another shape", unlike)):
            if names:
                raise RunError(f"weights of version {version} do not fit the actor's model: {names[0]} is {what}")

    @staticmethod
    def _fail(batch: Sequence[_Pending], error: BaseException) -> None:
        if not isinstance(error, EngineError):
            cause, error = error, EngineError(f"the model failed: {type(error).__name__}: {error}")
            error.__cause__ = cause
        for waiting in batch:
            if not waiting.answer.done():
                waiting.answer.set_exception(error)

    def _fail_everyone(self, batcher: asyncio.Task[None]) -> None:
        """The loop has ended: by `close`, or by a bug that whoever waits must not wait for."""
        self._closed = True
        bug = None if batcher.cancelled() else batcher.exception()
        if bug is None:
            self._fail([*self._in_hand, *self._pending], EngineError("the engine was closed"))
            return
        for waiting in [*self._in_hand, *self._pending]:
            if not waiting.answer.done():
                waiting.answer.set_exception(bug)


def stop_token_ids(model: Any, tokenizer: Any) -> set[int]:
    """Every token that ends an answer: the tokenizer's end token and those of the model's generation config."""
    listed = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = {listed} if isinstance(listed, int) else set(listed or ())
    return {int(token) for token in (*ids, tokenizer.eos_token_id) if token is not None}
