"""The half of the backend that samples, as the backend sees it, and its forms.

One model in place, a copy of it, or several versions of the weights at a time.
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
    """A `SamplingHalf` and its `RolloutEngine`: the versions that were published last."""

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
            first: a model with the weights as they are now, which nobody changes.
            trained: the weights that change, by name. They are copied at every `sync_weights`.
            make_engine: an engine on a model like `first`.
            in_worker: see `InWorker`.
            versions: how many are served at a time.
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
        """Of another model."""

    def fail(self, error: BackendError) -> None:
        for engine in self._engines.values():
            engine.fail(error)

    async def close(self) -> None:
        """Nothing is held."""

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """As `RolloutEngine.generate`, with the weights of `sampling.weight_version`.

        Raises:
            RolloutError: that version is not served any more; or as `LocalEngine.generate`.
        """
        version = max(self._engines) if sampling.weight_version is None else sampling.weight_version
        engine = self._engines.get(version)
        if engine is None:
            served = ", ".join(map(str, sorted(self._engines)))
            raise RolloutError(
                "weights-gone",
                f"Version {version} of the weights is not served any more.",
                f"Ask for one that is: {served}.",
            )
        return await engine.generate(prompt_ids, sampling, session=session)

    async def end_session(self, session: str) -> None:
        """Free what is cached of a conversation."""
        for engine in tuple(self._engines.values()):
            await engine.end_session(session)

    async def sync_weights(self, version: int) -> None:
        """Serve the model's weights as this version; the oldest goes, if there are too many."""
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
