"""The training half as the backend sees it, wherever it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.backend import UpdatePlan, UpdateResult
from rllm_core.data.batch import TokenBatch
from rllm_local.trainer import Trainer

InWorker = Callable[..., Awaitable[Any]]
"""Awaits a function, called with arguments where forward passes run."""


class Training(Protocol):
    """See `Trainer`. One call at a time."""

    async def columns(self, batch: TokenBatch, needs: frozenset[str]) -> Mapping[str, NDArray[np.float32]]:
        """Columns under the weights of the moment."""

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        """Change the weights."""

    async def save(self, folder: Path) -> None:
        """Write what `load` reads."""

    async def load(self, folder: Path) -> None:
        """Put back what `save` wrote."""

    async def close(self) -> None:
        """Free what it holds."""


class TrainingHere:
    """A `Training` on the thread that samples, so that the two take turns."""

    def __init__(self, trainer: Trainer, in_worker: InWorker) -> None:
        self.trainer = trainer
        self._in_worker = in_worker

    async def columns(self, batch: TokenBatch, needs: frozenset[str]) -> Mapping[str, NDArray[np.float32]]:
        columns: Mapping[str, NDArray[np.float32]] = await self._in_worker(self.trainer.columns, batch, needs)
        return columns

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        result: UpdateResult = await self._in_worker(self.trainer.update, batch, plan)
        return result

    async def save(self, folder: Path) -> None:
        await self._in_worker(self.trainer.save, folder)

    async def load(self, folder: Path) -> None:
        await self._in_worker(self.trainer.load, folder)

    async def close(self) -> None:
        """Nothing is held."""
