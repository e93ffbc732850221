"""Following the published weights: when a newer version is heard of, load it, verify it, hand it to the engine.

Waits for: news of a version, then for its manifest (it is published before it is announced, so at once). Versions
between are skipped. Knows nothing of sockets or episodes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Protocol

import structlog
import torch

from async_agent_rl.errors import RunError
from async_agent_rl.weights import Manifest, WeightStore

log = structlog.get_logger()
_POLL_S = 0.05


class Adopter(Protocol):
    """What takes the weights: an engine."""

    @property
    def version(self) -> int: ...

    def adopt(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None: ...


class WeightFollower:
    """One per actor. `run` beside the rest; `hear` of versions; `reach` one before using it."""

    def __init__(self, store: WeightStore, engine: Adopter, deadline_s: float = 60.0) -> None:
        """
        Args:
            deadline_s: from hearing of a version to having it. Generous because the first one is heard of while the
                learner still starts.
        """
        self._store = store
        self._engine = engine
        self._deadline_s = deadline_s
        self._wanted = -1
        self._changed = asyncio.Condition()
        self._news = asyncio.Event()

    def hear(self, version: int) -> None:
        """A version is said to be published."""
        if version > self._wanted:
            self._wanted = version
            self._news.set()

    async def reach(self, version: int) -> None:
        """Return once the engine uses this version or a newer one. `run` ends with an error if that never happens."""
        self.hear(version)
        async with self._changed:
            await self._changed.wait_for(lambda: self._engine.version >= version)

    async def run(self) -> None:
        """Follow until cancelled.

        Raises:
            RunError: a version cannot be had in time, is damaged, or does not fit the model.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            while self._wanted > self._engine.version:
                started_s = time.monotonic()
                manifest, tensors = await self._fetch(self._wanted)
                self._engine.adopt(manifest.version, tensors)
                took_s = round(time.monotonic() - started_s, 4)
                log.info("weights_adopted", version=manifest.version, took_s=took_s)
                async with self._changed:
                    self._changed.notify_all()

    async def _fetch(self, version: int) -> tuple[Manifest, dict[str, torch.Tensor]]:
        """The newest version there is, at least this one."""
        give_up_s = time.monotonic() + self._deadline_s
        while True:
            found = await asyncio.to_thread(self._load_newest, version)
            if found is not None:
                return found
            if time.monotonic() > give_up_s:
                raise RunError(f"weights of version {version} were not published within {self._deadline_s:g} s")
            await asyncio.sleep(_POLL_S)

    def _load_newest(self, at_least: int) -> tuple[Manifest, dict[str, torch.Tensor]] | None:
        """In a thread. None when no such version is published yet."""
        manifest = self._store.latest()
        if manifest is None or manifest.version < at_least:
            return None
        try:
            return manifest, self._store.load(manifest)
        except RunError:
            newer = self._store.latest()
            if newer is None or newer.version <= manifest.version:
                raise
            return None  # it was pruned under our hands; the newer one is next
