"""The half of the backend that samples, as the backend sees it, and two of its forms: one model, one version."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from torch import Tensor

from rllm_core.contracts.engine import RolloutEngine
from rllm_core.errors import BackendError
from rllm_local.engine import LocalEngine
from rllm_local.weights import copy_weights, trained_weights

InWorker = Callable[..., Awaitable[Any]]
"""Awaits a function, called with arguments where forward passes run."""


class SamplingHalf(Protocol):
    """What samples, and learns of new weights."""

    @property
    def engine(self) -> RolloutEngine:
        """What attempts sample with."""

    def weights_change(self) -> None:
        """An update of the weights is about to begin."""

    async def sync_weights(self, version: int) -> None:
        """Sample with the weights as they are now."""

    def fail(self, error: BackendError) -> None:
        """What trains is gone: whoever waits for a sample learns it, and whoever asks for one."""

    async def close(self) -> None:
        """Free what it holds."""


class SamplesInPlace:
    """Samples from the model that is trained."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine

    def weights_change(self) -> None:
        self.engine.hold()

    async def sync_weights(self, version: int) -> None:
        self.engine.sync_weights(version)

    def fail(self, error: BackendError) -> None:
        self.engine.fail(error)

    async def close(self) -> None:
        """Nothing is held."""


class SamplesFromCopy:
    """Samples from a model that is given the weights of another: also while that one is updated."""

    def __init__(self, engine: LocalEngine, model: Any, trained: Mapping[str, Tensor], in_worker: InWorker) -> None:
        """Args:
        engine: samples from `model`.
        model: of the same class as the one that is trained.
        trained: what is trained of that one, by name.
        in_worker: see `InWorker`.
        """
        self.engine = engine
        self._own = trained_weights(model)
        self._trained = trained
        self._in_worker = in_worker

    def weights_change(self) -> None:
        """Of another model."""

    async def sync_weights(self, version: int) -> None:
        self.engine.hold()
        await self._in_worker(copy_weights, self._trained, self._own)
        self.engine.sync_weights(version)

    def fail(self, error: BackendError) -> None:
        self.engine.fail(error)

    async def close(self) -> None:
        """Nothing is held."""
