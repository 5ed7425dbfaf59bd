"""LocalBackend: one model in this process, sampled from and trained in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

from rllm_core.batch import TokenBatch
from rllm_core.contracts.backend import Backend, RunContext, UpdatePlan
from rllm_core.errors import RllmError
from rllm_core.rollout.renderer import Renderer, options_without_thinking
from rllm_core.seeding import derive_seed
from rllm_local.engine import LocalEngine
from rllm_local.model import LoadedModel, load_model
from rllm_local.settings import LocalConfig
from rllm_local.state import load_state, save_state
from rllm_local.update import Updater

T = TypeVar("T")
GIB = 1 << 30


class LocalBackend(Backend):
    """Everything that touches the model runs on one worker thread: the event loop stays free for environments."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rllm-local")
        self._loaded: LoadedModel | None = None

    async def start(self, run: RunContext) -> LocalEngine:
        settings: LocalConfig = run.backend_config
        await self._in_worker(torch.set_num_threads, settings.local.torch_threads)
        loaded = await self._in_worker(load_model, settings.model, derive_seed(run.seed, "model"))
        self._loaded = loaded
        thinking = options_without_thinking(loaded.tokenizer) if run.config.rllm.disable_thinking else {}
        self._updater = Updater(
            loaded.model,
            settings.training,
            total_steps=run.total_steps,
            temperature=run.config.sampling.train.temperature,
            max_response_length=run.config.data.max_response_length,
        )
        self._engine = LocalEngine(
            loaded.model,
            Renderer(loaded.tokenizer, loaded.stop_ids, thinking),
            self._executor,
            max_context=min(loaded.max_context, settings.training.max_length),
            max_concurrency=settings.local.max_concurrency,
            kv_cache_bytes=int(settings.local.kv_cache_gib * GIB),
        )
        return self._engine

    async def process(self, batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        """The model that sampled is the model that is trained, so its sampling log-probs are the old log-probs."""
        return batch.with_columns(old_logprobs=batch.sampling_logprobs)

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> dict[str, float]:
        return await self._in_worker(self._updater.update, batch, plan)

    async def publish(self, version: int) -> None:
        self._engine.publish(version)

    async def save(self, folder: Path) -> None:
        loaded = self._started()
        await self._in_worker(save_state, folder, loaded.model, loaded.tokenizer, self._updater.optimizer)

    async def load(self, folder: Path) -> None:
        await self._in_worker(load_state, folder, self._started().model, self._updater.optimizer)

    async def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _started(self) -> LoadedModel:
        if self._loaded is None:
            raise RllmError("The local backend has not been started.", "Call start() first.")
        return self._loaded

    async def _in_worker(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)
