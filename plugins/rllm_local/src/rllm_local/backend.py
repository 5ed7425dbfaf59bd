"""LocalBackend: one model in this process, trained here, and sampled from here or by an engine that is hosted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

from rllm_backend_kit.renderers import make_renderer, options_without_thinking
from rllm_core.contracts.backend import Backend, RunContext, UpdatePlan, UpdateResult
from rllm_core.contracts.engine import RolloutEngine
from rllm_core.contracts.renderer import RendererSetup
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import RllmError
from rllm_core.notices import warn_once
from rllm_core.seeding import derive_seed
from rllm_local.early_renderer import try_renderer
from rllm_local.engine import LocalEngine
from rllm_local.hosting import GIB, Hosting
from rllm_local.kv_cache import as_needed
from rllm_local.model import load_model_to_train
from rllm_local.same_bits import (
    TIMING_MATTERS,
    fix_order_of_sums,
    fold_last_product,
    positions_to_read,
    sums_in_one_order,
)
from rllm_local.served_versions import ServedVersions
from rllm_local.settings import LocalConfig
from rllm_local.trainer import Trainer

T = TypeVar("T")


class LocalBackend(Backend):
    """Everything that touches the model runs on one worker thread: the event loop stays free for environments."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rllm-local")
        self._trainer: Trainer | None = None
        self._engine: LocalEngine | None = None
        self._versions: ServedVersions | None = None
        self._hosting: Hosting | None = None

    async def start(self, run: RunContext) -> RolloutEngine:
        settings: LocalConfig = run.backend_config
        if run.versions_served > 1:
            fix_order_of_sums()
        await self._in_worker(torch.set_num_threads, settings.local.torch_threads)
        if run.calls_tools:
            await self._in_worker(try_renderer, run, settings.model.name)
        loaded, masters = await self._in_worker(load_model_to_train, settings.model, derive_seed(run.seed, "model"))
        thinking = options_without_thinking(loaded.tokenizer) if run.config.rllm.disable_thinking else {}
        model = loaded.model
        self._trainer = await self._in_worker(Trainer, run, loaded, masters)
        renderer = make_renderer(
            run,
            RendererSetup(
                name=settings.model.name,
                tokenizer=loaded.tokenizer,
                stop_ids=frozenset(loaded.stop_ids),
                template_options=thinking,
            ),
        )
        max_context = min(loaded.max_context, settings.training.max_length)
        if run.engine is not None:
            self._hosting = Hosting(run.engine, loaded, self._executor)
            await self._hosting.start(renderer, max_context, settings)
            return self._hosting.engine

        def make_engine(of: Any) -> LocalEngine:
            return LocalEngine(
                of,
                renderer,
                self._executor,
                max_context=max_context,
                max_concurrency=settings.local.max_concurrency,
                kv_cache_bytes=int(settings.local.kv_cache_gib * GIB / run.versions_served),
                positions_to_read=positions_to_read if run.versions_served > 1 else as_needed,
            )

        if run.versions_served > 1:
            fold_last_product(model)
            if not await self._in_worker(sums_in_one_order, model):
                warn_once(TIMING_MATTERS)
            self._versions = ServedVersions(model, make_engine, self._in_worker, versions=run.versions_served)
            return self._versions
        self._engine = make_engine(model)
        return self._engine

    async def process(self, batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        return batch.with_columns(**await self._in_worker(self._started().columns, batch, needs))

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        if self._engine is not None:
            self._engine.hold()
        return await self._in_worker(self._started().update, batch, plan)

    async def publish(self, version: int) -> None:
        if self._hosting is not None:
            await self._hosting.publish(version)
        if self._versions is not None:
            await self._versions.publish(version)
        if self._engine is not None:
            self._engine.publish(version)

    async def save(self, folder: Path) -> None:
        await self._in_worker(self._started().save, folder)

    async def load(self, folder: Path) -> None:
        await self._in_worker(self._started().load, folder)

    async def close(self) -> None:
        if self._hosting is not None:
            await self._hosting.close()
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _started(self) -> Trainer:
        if self._trainer is None:
            raise RllmError("The local backend has not been started.", "Call start() first.")
        return self._trainer

    async def _in_worker(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)
