"""LocalBackend: one model on this machine. The training half and the sampling half may be in different processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rllm_backend_kit.loss import complete_plan
from rllm_backend_kit.weight_comparison import find_differences
from rllm_core.contracts.backend import Backend, RunContext, UpdatePlan, UpdateResult
from rllm_core.contracts.engine import RolloutEngine
from rllm_core.contracts.weight_comparison import KnownFault, Probe, ScoringEngine, TensorDifference, WeightComparison
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import BackendError, ConfigError, RllmError
from rllm_local.early_renderer import early_renderer
from rllm_local.engine import LocalEngine
from rllm_local.logprobs import is_classifier
from rllm_local.model_name import TINY
from rllm_local.samplers import (
    CopiedWeightsSampler,
    EngineFactory,
    HostedSampler,
    InWorker,
    Sampler,
    SharedWeightsSampler,
    VersionedSampler,
    load_to_sample,
)
from rllm_local.scoring import Scores, score_suspects, score_to_train, trained_digests
from rllm_local.settings import LocalConfig
from rllm_local.trainer import Trainer, load_trainer
from rllm_local.training_process import TrainingProcess
from rllm_local.weights import copy_model, trained_weights

T = TypeVar("T")


class Training(Protocol):
    """The training half: a model with its optimizer, critic and reference. It receives one call at a time."""

    async def columns(self, batch: TokenBatch, needs: frozenset[str]) -> Mapping[str, NDArray[np.float32]]:
        """Return columns under the current weights; see `ColumnFiller.columns`."""

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        """Change the weights; see `Updater.update`."""

    async def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a module's function with the `Trainer` and arguments that can be pickled."""

    async def save(self, directory: Path) -> None:
        """Write the state that `load` reads."""

    async def load(self, directory: Path) -> None:
        """Restore the state that `save` wrote."""

    async def close(self) -> None:
        """Release processes and memory."""


class InProcessTraining:
    """A `Training` on the thread that also samples, so the two alternate."""

    def __init__(self, trainer: Trainer, in_worker: InWorker) -> None:
        self.trainer = trainer
        self._in_worker = in_worker

    async def columns(self, batch: TokenBatch, needs: frozenset[str]) -> Mapping[str, NDArray[np.float32]]:
        return await self._in_worker(self.trainer.filler.columns, batch, needs)

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        return await self._in_worker(self.trainer.updater.update, batch, plan)

    async def call(self, function: Callable[..., T], *arguments: object) -> T:
        return await self._in_worker(function, self.trainer, *arguments)

    async def save(self, directory: Path) -> None:
        await self._in_worker(self.trainer.save, directory)

    async def load(self, directory: Path) -> None:
        await self._in_worker(self.trainer.load, directory)

    async def close(self) -> None:
        """Do nothing, because the sampling half closes the thread."""


class LocalComparison(WeightComparison):
    """Compares the sampler with the trainer of the backend `local`, in one process or in two."""

    def __init__(self, training: Training, sampling: Sampler, model: Any, max_context: int) -> None:
        """`model` is the model of this process, `transformers.PreTrainedModel`."""
        # A hosted engine may store tensors in its own layout, and a GPU's tensors are copied to compute their digests.
        self._is_cheap = isinstance(sampling.latest, LocalEngine) and model.device.type == "cpu"
        self._training = training
        self._sampling = sampling
        self.vocabulary = model.get_input_embeddings().num_embeddings
        self.max_context = max_context
        self.layers = model.config.get_text_config().num_hidden_layers
        self.dtype = str(model.dtype).removeprefix("torch.")  # type: ignore[assignment]

    async def of_trainer(self, probe: Probe) -> Scores:
        return await self._training.call(score_to_train, probe)

    async def of_samplers(self, probe: Probe) -> Mapping[str, Scores]:
        return await self._engine.score(probe)

    async def of_suspects(self, probe: Probe) -> Mapping[KnownFault, Scores]:
        return await self._training.call(score_suspects, probe)

    async def different_tensors(self, sampler: str, *, is_suspect: bool) -> Sequence[TensorDifference] | None:
        if not (is_suspect or self._is_cheap):
            return None
        trained = await self._sampling.sent_digests(partial(self._training.call, trained_digests))
        own = await self._engine.digests(sampler) if trained else {}
        return find_differences(trained, own) if own else None

    @property
    def _engine(self) -> ScoringEngine:
        engine = self._sampling.latest
        assert engine is not None
        return engine


class LocalBackend(Backend):
    """The `local` backend. Sampling passes run on one worker thread, so the event loop stays free for environments.
    Updates run on the same thread or in a separate process."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rllm-local")
        self._training: Training | None = None
        self._sampling: Sampler | None = None
        self._comparison: WeightComparison | None = None
        self._max_context = 0

    async def start(self, run: RunContext) -> RolloutEngine:
        settings: LocalConfig = run.backend_config
        await self._in_worker(torch.set_num_threads, settings.local.torch_threads)
        if run.calls_tools or settings.model.name != TINY:
            await self._in_worker(early_renderer, run, settings.model.name)
        if run.overlaps and run.engine is None and settings.local.training_process:
            self._sampling, model = await self._start_training_process(run)
        else:
            self._sampling, model = await self._start_in_process(run)
        if self._sampling.latest is not None and not is_classifier(model):
            training, sampling = self._require_started()
            self._comparison = LocalComparison(training, sampling, model, self._sampling.engine.max_context - 1)
        return self._sampling.engine

    async def process(self, batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        training, _ = self._require_started()
        self._check_lengths(batch)
        return batch.with_columns(**await training.columns(batch, needs))

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        training, sampling = self._require_started()
        self._check_lengths(batch)
        sampling.weights_change()
        plan = complete_plan(batch, plan)
        return replace(await training.update(batch, plan), made_with=plan)

    async def sync_weights(self, version: int) -> None:
        _, sampling = self._require_started()
        await sampling.sync_weights(version)

    def weight_comparison(self) -> WeightComparison | None:
        return self._comparison

    async def save(self, directory: Path) -> None:
        training, _ = self._require_started()
        await training.save(directory)

    async def load(self, directory: Path) -> None:
        training, _ = self._require_started()
        await training.load(directory)

    async def close(self) -> None:
        async with AsyncExitStack() as ends:  # closes each part, even if another part raises
            ends.callback(self._executor.shutdown, wait=True, cancel_futures=True)
            for half in (self._training, self._sampling):
                if half is not None:
                    ends.push_async_callback(half.close)

    async def _start_in_process(self, run: RunContext) -> tuple[Sampler, Any]:
        """Return the sampling half, and the model of this process."""
        loaded, trainer = await self._in_worker(load_trainer, run)
        self._training = InProcessTraining(trainer, self._in_worker)
        model = loaded.model
        engines = EngineFactory(run, loaded, self._executor)
        self._max_context = engines.max_context
        if run.engine is not None:
            self._sampling = hosting = HostedSampler(run.engine, loaded, self._in_worker)
            await hosting.start(engines.renderer, engines.max_context, run.backend_config)
            return hosting, model
        if run.versions_served == 1:
            return SharedWeightsSampler(engines.make(model)), model
        trained = trained_weights(model)
        return VersionedSampler(
            copy_model(model, trained), trained, engines.make, self._in_worker, versions=run.versions_served
        ), model

    async def _start_training_process(self, run: RunContext) -> tuple[Sampler, Any]:
        """Return the sampling half, and the model of this process."""
        self._training = process = TrainingProcess(self._on_training_end)
        # Both processes load the model at the same time.
        _, loaded = await asyncio.gather(process.start(run), self._in_worker(load_to_sample, run))
        model = loaded.model
        engines = EngineFactory(run, loaded, self._executor)
        self._max_context = engines.max_context
        trained = process.weights(trained_weights(model))
        if run.versions_served == 1:
            return CopiedWeightsSampler(engines.make(model), model, trained, self._in_worker), model
        return VersionedSampler(model, trained, engines.make, self._in_worker, versions=run.versions_served), model

    def _check_lengths(self, batch: TokenBatch) -> None:
        """Raise ConfigError if a row is longer than the context, because it can change the rope of other rows."""
        longest = int(batch.row_lengths.max(initial=0))
        if longest > self._max_context:
            raise ConfigError(
                "context-too-long",
                f"A row of the batch has {longest} tokens, and the run's longest context is {self._max_context}.",
                "Raise training.max_length if the model allows it. Otherwise cut rows at `StageContext.max_context`.",
            )

    def _on_training_end(self, error: BackendError) -> None:
        # Fail at once instead of after the next batch, because the running rollouts can no longer be used.
        if self._sampling is not None:
            self._sampling.fail(error)

    def _require_started(self) -> tuple[Training, Sampler]:
        if self._training is None or self._sampling is None:
            raise RllmError("not-started", "The local backend is not started.", "Call start() first.")
        return self._training, self._sampling

    async def _in_worker(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)
