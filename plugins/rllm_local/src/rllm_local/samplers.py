"""The sampling half of the backend: its engines, and the samplers that give them new weights.

A sampler uses the trained model itself, a copy of it, several weight versions at the same time, or an engine of a
different package.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_backend_kit.grammars import Grammars
from rllm_backend_kit.weight_comparison import digest
from rllm_core.contracts.backend import RunContext
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.engine import (
    Completion,
    EnginePlugin,
    EngineSetup,
    HostedEngine,
    RolloutEngine,
    SamplingParams,
)
from rllm_core.contracts.renderer import Renderer
from rllm_core.contracts.weight_comparison import ScoringEngine
from rllm_core.errors import BackendError, RolloutError
from rllm_core.seeding import derive_seed
from rllm_local.early_renderer import build_renderer
from rllm_local.engine import LocalEngine
from rllm_local.lora import Adapter
from rllm_local.model import LoadedModel, check_max_length, load_model_to_sample
from rllm_local.settings import LocalConfig
from rllm_local.weights import copy_model, copy_weights, plain_name, trained_weights
from rllm_serving.process_directory import ProcessDirectory

GIB = 1 << 30
T = TypeVar("T")


class InWorker(Protocol):
    """A function that runs other functions on the thread of the forward passes."""

    async def __call__(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call `function` on the thread, and return its result."""


def load_to_sample(run: RunContext) -> LoadedModel:
    """Load the model of `load_trainer` in a process that only samples. It raises the same ConfigErrors."""
    return load_model_to_sample(run.backend_config.model, derive_seed(run.seed, "model"))


class EngineFactory:
    """Creates engines that share a renderer, a context length and the memory for keys and values."""

    def __init__(self, run: RunContext, loaded: LoadedModel, executor: Executor) -> None:
        """Prepare the shared parts. `executor` runs the engines' forward passes.

        Raises:
            ConfigError: the renderer or the model's rope does not support the run's settings.
        """
        settings: LocalConfig = run.backend_config
        self.renderer = build_renderer(run, settings.model.name, loaded.tokenizer, loaded.stop_ids)
        check_max_length(settings.model.name, settings.training.max_length, loaded.rope_changes_beyond)
        self.max_context = min(loaded.max_context, settings.training.max_length)
        self._settings = settings.local
        self._versions = run.versions_served
        self._executor = executor
        # Copies of the model share the grammars, because the library's tokenizer takes seconds to build and tens of MB.
        # A classifier does not sample, and has no output embeddings.
        embeddings = loaded.model.get_output_embeddings() or loaded.model.get_input_embeddings()
        vocabulary = embeddings.weight.shape[0]
        self._grammars = Grammars(loaded.tokenizer, vocabulary, self.renderer)

    def make(self, model: Any) -> LocalEngine:
        """Return an engine on the loaded model or on a copy of it."""
        return LocalEngine(
            model,
            self.renderer,
            self._executor,
            max_context=self.max_context,
            max_concurrency=self._settings.max_concurrency,
            kv_cache_bytes=int(self._settings.kv_cache_gib * GIB / self._versions),
            grammars=self._grammars,
        )


TrainedDigests = Callable[[], Awaitable[Mapping[str, str]]]
"""Function that returns the digests of the trained weights, see `digest_parameters`."""


class Sampler:
    """The half of the backend that samples and receives new weights."""

    @property
    def engine(self) -> RolloutEngine:
        """The engine that samples the rollouts."""
        raise NotImplementedError

    def weights_change(self) -> None:
        """Prepare for an update of the weights, which starts next. A sampler with other weights does nothing."""

    async def sync_weights(self, version: int) -> None:
        """Use the current weights for sampling."""
        raise NotImplementedError

    @property
    def latest(self) -> ScoringEngine | None:
        """The engine with the latest weights. None if it cannot report which weights it has."""
        raise NotImplementedError

    async def sent_digests(self, trained_digests: TrainedDigests) -> Mapping[str, str]:
        """Return the digests that the latest engine's weights must have. Empty if no weights are sent."""
        return await trained_digests()

    def fail(self, error: BackendError) -> None:
        """Raise the error in all waiting and later requests, because the training half has stopped."""

    async def close(self) -> None:
        """Free the engine's processes and memory."""


class _LocalSampler(Sampler):
    """Samples with one `LocalEngine`."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    @property
    def engine(self) -> LocalEngine:
        return self._engine

    @property
    def latest(self) -> LocalEngine:
        return self._engine

    def fail(self, error: BackendError) -> None:
        self._engine.fail(error)


class SharedWeightsSampler(_LocalSampler):
    """Samples from the trained model itself."""

    def weights_change(self) -> None:
        self._engine.pause()

    async def sync_weights(self, version: int) -> None:
        self._engine.sync_weights(version)

    async def sent_digests(self, trained_digests: TrainedDigests) -> Mapping[str, str]:
        return {}


class CopiedWeightsSampler(_LocalSampler):
    """Samples from a copy of the trained model, also during updates."""

    def __init__(self, engine: LocalEngine, model: Any, trained: Mapping[str, Tensor], in_worker: InWorker) -> None:
        """Prepare the copies of weights.

        Args:
            engine: an engine that samples from `model`.
            model: a model of the same class as the trained model.
            trained: the trained model's trained weights, by name.
            in_worker: see `InWorker`.
        """
        super().__init__(engine)
        self._own = trained_weights(model)
        self._trained = trained
        self._in_worker = in_worker

    async def sync_weights(self, version: int) -> None:
        self._engine.pause()
        await self._in_worker(copy_weights, self._trained, self._own)
        self._engine.sync_weights(version)


class VersionedSampler(Sampler):
    """A `Sampler` and its `RolloutEngine` with the most recently synced weight versions."""

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
    def engine(self) -> VersionedSampler:
        return self

    def fail(self, error: BackendError) -> None:
        for engine in self._engines.values():
            engine.fail(error)

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

    @property
    def latest(self) -> LocalEngine:
        return self._engines[max(self._engines)]

    async def end_session(self, session: str) -> None:
        """Free a conversation's cache."""
        for engine in tuple(self._engines.values()):
            await engine.end_session(session)

    async def sync_weights(self, version: int) -> None:
        """Serve the model's current weights as this version. If there are too many versions, remove the oldest."""
        old = [each for each in sorted(self._engines) if each <= version - self._versions]
        if old:
            # The oldest version's copy and engine get the new weights.
            spare, engine = self._copies.pop(old[0]), self._engines.pop(old[0])
        else:
            spare = await self._in_worker(copy_model, self._copies[max(self._copies)], self._trained.keys())
            engine = self._make_engine(spare)
        for each in old[1:]:
            del self._copies[each], self._engines[each]
        await self._in_worker(copy_weights, self._trained, dict(spare.named_parameters()))
        engine.sync_weights(version)
        self._copies[version], self._engines[version] = spare, engine


class HostedSampler(Sampler):
    """A `Sampler` that owns a `HostedEngine` and sends it every version of the model's weights."""

    def __init__(self, choice: PluginChoice[EnginePlugin[Any]], loaded: LoadedModel, in_worker: InWorker) -> None:
        self._engine: HostedEngine = choice.plugin.load()(choice.params)
        self._loaded = loaded
        self._in_worker = in_worker

    @property
    def engine(self) -> HostedEngine:
        return self._engine

    async def start(self, renderer: Renderer, max_context: int, settings: LocalConfig) -> None:
        """Start the engine, and send it the model's weights as version 0."""
        with ProcessDirectory("rllm-local-") as files:
            directory = files.path
            await self._in_worker(_save_without_weights, self._loaded, directory)
            await self._engine.start(
                EngineSetup(
                    directory=directory,
                    renderer=renderer,
                    max_context=max_context,
                    max_concurrency=settings.local.max_concurrency,
                    kv_cache_bytes=int(settings.local.kv_cache_gib * GIB),
                    dtype=settings.model.dtype,
                )
            )
        await self.sync_weights(0)

    async def sync_weights(self, version: int) -> None:
        """Send the model's current weights to the engine, which then samples with them."""
        weights = await self._in_worker(checkpoint_weights, self._loaded.model, self._loaded.adapter)
        await self._engine.load_weights(weights.items(), version)

    @property
    def latest(self) -> ScoringEngine | None:
        return self._engine if isinstance(self._engine, ScoringEngine) else None

    async def sent_digests(self, trained_digests: TrainedDigests) -> Mapping[str, str]:
        return await self._in_worker(self._digest_checkpoint)

    def _digest_checkpoint(self) -> dict[str, str]:
        """Return the digests of the sent weights by each of their names in a checkpoint."""
        model = self._loaded.model
        digests = {name: digest(tensor) for name, tensor in checkpoint_weights(model, self._loaded.adapter).items()}
        every = dict(model.named_parameters(remove_duplicate=False))
        first = {id(parameter): plain_name(name) for name, parameter in reversed(every.items())}
        tied = {plain_name(name): first[id(parameter)] for name, parameter in every.items()}
        return digests | {name: digests[first] for name, first in tied.items() if first in digests}

    async def close(self) -> None:
        """Stop the engine, even if its start failed."""
        await self._engine.close()


def _save_without_weights(loaded: LoadedModel, directory: Path) -> None:
    config = copy.deepcopy(loaded.model.config)
    config.architectures = [type(loaded.model).__name__]
    config.save_pretrained(directory)
    loaded.tokenizer.save_pretrained(directory)


def checkpoint_weights(model: Any, adapter: Adapter | None = None) -> dict[str, torch.Tensor]:
    """Return the model's weights, each once, with the names and shapes of `save_pretrained` and with a merged adapter.

    They share the model's memory, unless the model has an adapter.
    """
    from transformers.core_model_loading import revert_weight_conversion

    state: dict[str, torch.Tensor] = model.state_dict() if adapter is None else adapter.merged_state()
    # Tied weights are parameters with two names. A checkpoint contains only the first name.
    every, once = (
        {plain_name(name) for name, _ in model.named_parameters(remove_duplicate=each)} for each in (False, True)
    )
    named = {name: tensor for name, tensor in state.items() if name in once or name not in every}
    reverted: dict[str, torch.Tensor] = revert_weight_conversion(model, named)
    return reverted
