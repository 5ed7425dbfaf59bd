"""The sampling half of the backend: its interface and its implementations.

They sample from the trained model itself, from a copy of it, or from several weight versions at the same time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rllm_core.contracts.engine import Completion, RolloutEngine, SamplingParams
from rllm_core.errors import BackendError, RolloutError
from rllm_local.engine import LocalEngine
from rllm_local.weights import copied, copy_weights, trained_weights


class ServedVersions:
    """A `SamplingHalf` and its `RolloutEngine` with the most recently synced weight versions."""

    def __init__(
        self,
        first: Any,
        trained: Mapping[str, Tensor],
        make_engine: Callable[[Any], LocalEngine],
        in_worker: InWorker,
        *,
        versions: int,
    ) -> None:
        """Serve version 0.

        Args:
            first: a model with the current weights, which is never changed by other code.
            trained: the weights that change, by name. Each `sync_weights` copies them.
            make_engine: function that creates an engine on a model like `first`.
            in_worker: see `InWorker`.
            versions: maximum number of versions that are served at the same time.
        """
        self._trained = trained
        self._make_engine = make_engine
        self._in_worker = in_worker
        self._versions = versions
        self._copies: dict[int, Any] = {0: first}
        self._engines: dict[int, LocalEngine] = {0: make_engine(first)}
        self.renderer = self._engines[0].renderer
        self.max_context = self._engines[0].max_context

    @property
    def engine(self) -> ServedVersions:
        return self

    def weights_change(self) -> None:
        """Do nothing, because the update changes a different model."""

    def fail(self, error: BackendError) -> None:
        for engine in self._engines.values():
            engine.fail(error)

    async def close(self) -> None:
        """Do nothing, because there is nothing to free."""

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """Sample with the weights of `sampling.weight_version`; see `RolloutEngine.generate`.

        Raises:
            RolloutError: the version is no longer served, or an error of `LocalEngine.generate` occurs.
        """
        version = max(self._engines) if sampling.weight_version is None else sampling.weight_version
        engine = self._engines.get(version)
        if engine is None:
            served = ", ".join(map(str, sorted(self._engines)))
            raise RolloutError(
                "weights-gone",
                f"Weight version {version} is no longer served.",
                f"Request a served version: {served}.",
            )
        return await engine.generate(prompt_ids, sampling, session=session)

    async def end_session(self, session: str) -> None:
        """Free a conversation's cache."""
        for engine in tuple(self._engines.values()):
            await engine.end_session(session)

    async def sync_weights(self, version: int) -> None:
        """Serve the model's current weights as this version. If there are too many versions, remove the oldest."""
        old = [each for each in sorted(self._engines) if each <= version - self._versions]
        spare, engine = (self._copies.pop(old[0]), self._engines.pop(old[0])) if old else (None, None)
        for each in old[1:]:
            del self._copies[each], self._engines[each]
        if spare is None or engine is None:
            spare = await self._in_worker(copied, self._copies[max(self._copies)], self._trained.keys())
            engine = self._make_engine(spare)
        await self._in_worker(copy_weights, self._trained, dict(spare.named_parameters()))
        engine.sync_weights(version)
        self._copies[version], self._engines[version] = spare, engine


InWorker = Callable[..., Awaitable[Any]]
"""Runs a function with arguments on the thread of the forward passes, and awaits it."""


class SamplingHalf(Protocol):
    """The half of the backend that samples and receives new weights."""

    @property
    def engine(self) -> RolloutEngine:
        """The engine that samples the rollouts."""

    def weights_change(self) -> None:
        """Prepare for an update of the weights, which starts next."""

    async def sync_weights(self, version: int) -> None:
        """Use the current weights for sampling."""

    def fail(self, error: BackendError) -> None:
        """Raise the error in all waiting and later requests, because the training half has stopped."""

    async def close(self) -> None:
        """Free its resources."""


class SamplesInPlace:
    """Samples from the trained model itself."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine

    def weights_change(self) -> None:
        self.engine.pause()

    async def sync_weights(self, version: int) -> None:
        self.engine.sync_weights(version)

    def fail(self, error: BackendError) -> None:
        self.engine.fail(error)

    async def close(self) -> None:
        """Do nothing, because there is nothing to free."""


class SamplesFromCopy:
    """Samples from a copy of the trained model, also during updates."""

    def __init__(self, engine: LocalEngine, model: Any, trained: Mapping[str, Tensor], in_worker: InWorker) -> None:
        """Prepare the copies of weights.

        Args:
            engine: an engine that samples from `model`.
            model: a model of the same class as the trained model.
            trained: the trained model's trained weights, by name.
            in_worker: see `InWorker`.
        """
        self.engine = engine
        self._own = trained_weights(model)
        self._trained = trained
        self._in_worker = in_worker

    def weights_change(self) -> None:
        """Do nothing, because the update changes a different model."""

    async def sync_weights(self, version: int) -> None:
        self.engine.pause()
        await self._in_worker(copy_weights, self._trained, self._own)
        self.engine.sync_weights(version)

    def fail(self, error: BackendError) -> None:
        self.engine.fail(error)

    async def close(self) -> None:
        """Do nothing, because there is nothing to free."""
