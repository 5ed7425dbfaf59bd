"""LocalBackend: one model on this machine, trained in this process or beside it, and sampled from here or by an engine
that is hosted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from rllm_backend_kit.renderers import make_renderer, options_without_thinking
from rllm_core.contracts.backend import Backend, RunContext, UpdatePlan, UpdateResult
from rllm_core.contracts.engine import RolloutEngine
from rllm_core.contracts.renderer import Renderer, RendererSetup
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import BackendError, RllmError
from rllm_core.notices import warn_once
from rllm_core.seeding import derive_seed
from rllm_local.early_renderer import try_renderer
from rllm_local.engine import LocalEngine
from rllm_local.hosting import GIB, Hosting
from rllm_local.kv_cache import as_needed
from rllm_local.model import LoadedModel, load_model_to_sample
from rllm_local.same_bits import (
    TIMING_MATTERS,
    fix_order_of_sums,
    fold_last_product,
    positions_to_read,
    sums_in_one_order,
)
from rllm_local.sampling_half import SamplesFromCopy, SamplesInPlace, SamplingHalf
from rllm_local.served_versions import ServedVersions
from rllm_local.settings import LocalConfig
from rllm_local.trainer import load_trainer
from rllm_local.training import Training, TrainingHere
from rllm_local.training_process import TrainingProcess
from rllm_local.weights import copied, trained_weights

T = TypeVar("T")


class LocalBackend(Backend):
    """Passes that sample run on one worker thread: the event loop stays free for environments. Updates run on it too,
    or in another process."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rllm-local")
        self._training: Training | None = None
        self._sampling: SamplingHalf | None = None

    async def start(self, run: RunContext) -> RolloutEngine:
        settings: LocalConfig = run.backend_config
        if run.versions_served > 1:
            fix_order_of_sums()
        await self._in_worker(torch.set_num_threads, settings.local.torch_threads)
        if run.calls_tools:
            await self._in_worker(try_renderer, run, settings.model.name)
        if run.overlaps and run.engine is None and settings.local.training_process:
            self._sampling = await self._start_apart(run)
        else:
            self._sampling = await self._start_here(run)
        return self._sampling.engine

    async def process(self, batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        training, _ = self._started()
        return batch.with_columns(**await training.columns(batch, needs))

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        training, sampling = self._started()
        sampling.weights_change()
        return await training.update(batch, plan)

    async def publish(self, version: int) -> None:
        _, sampling = self._started()
        await sampling.publish(version)

    async def save(self, folder: Path) -> None:
        training, _ = self._started()
        await training.save(folder)

    async def load(self, folder: Path) -> None:
        training, _ = self._started()
        await training.load(folder)

    async def close(self) -> None:
        for half in (self._sampling, self._training):
            if half is not None:
                await half.close()
        self._executor.shutdown(wait=True, cancel_futures=True)

    async def _start_here(self, run: RunContext) -> SamplingHalf:
        loaded, trainer = await self._in_worker(load_trainer, run)
        self._training = TrainingHere(trainer, self._in_worker)
        renderer, model = _renderer_of(run, loaded), loaded.model
        if run.engine is not None:
            self._sampling = hosting = Hosting(run.engine, loaded, self._executor)
            await hosting.start(renderer, _max_context(run, loaded), run.backend_config)
            return hosting
        make_engine = self._engines(run, loaded, renderer)
        if run.versions_served == 1:
            return SamplesInPlace(make_engine(model))
        await self._check_order_of_sums(model)
        trained = trained_weights(model)
        return ServedVersions(
            copied(model, trained), trained, make_engine, self._in_worker, versions=run.versions_served
        )

    async def _start_apart(self, run: RunContext) -> SamplingHalf:
        self._training = process = TrainingProcess(self._training_ended)
        # Both load at once.
        _, loaded = await asyncio.gather(process.start(run), self._in_worker(_load_to_sample, run))
        make_engine, model = self._engines(run, loaded, _renderer_of(run, loaded)), loaded.model
        trained = process.weights(trained_weights(model))
        if run.versions_served == 1:
            return SamplesFromCopy(make_engine(model), model, trained, self._in_worker)
        await self._check_order_of_sums(model)
        return ServedVersions(model, trained, make_engine, self._in_worker, versions=run.versions_served)

    def _engines(self, run: RunContext, loaded: LoadedModel, renderer: Renderer) -> Callable[[Any], LocalEngine]:
        """Makes an engine on a model like the one that is loaded."""
        settings: LocalConfig = run.backend_config
        return partial(
            LocalEngine,
            renderer=renderer,
            executor=self._executor,
            max_context=_max_context(run, loaded),
            max_concurrency=settings.local.max_concurrency,
            kv_cache_bytes=int(settings.local.kv_cache_gib * GIB / run.versions_served),
            positions_to_read=positions_to_read if run.versions_served > 1 else as_needed,
        )

    async def _check_order_of_sums(self, model: Any) -> None:
        if not await self._in_worker(sums_in_one_order, model):
            warn_once(TIMING_MATTERS)

    def _training_ended(self, error: BackendError) -> None:
        # At once, and not when the next batch is ready: rounds that are played are for nothing.
        if self._sampling is not None:
            self._sampling.fail(error)

    def _started(self) -> tuple[Training, SamplingHalf]:
        if self._training is None or self._sampling is None:
            raise RllmError("The local backend has not been started.", "Call start() first.")
        return self._training, self._sampling

    async def _in_worker(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)


def _load_to_sample(run: RunContext) -> LoadedModel:
    loaded = load_model_to_sample(run.backend_config.model, derive_seed(run.seed, "model"))
    if run.versions_served > 1:
        fold_last_product(loaded.model)
    return loaded


def _renderer_of(run: RunContext, loaded: LoadedModel) -> Renderer:
    thinking = options_without_thinking(loaded.tokenizer) if run.config.rllm.disable_thinking else {}
    return make_renderer(
        run,
        RendererSetup(
            name=run.backend_config.model.name,
            tokenizer=loaded.tokenizer,
            stop_ids=frozenset(loaded.stop_ids),
            template_options=thinking,
        ),
    )


def _max_context(run: RunContext, loaded: LoadedModel) -> int:
    return min(loaded.max_context, int(run.backend_config.training.max_length))
