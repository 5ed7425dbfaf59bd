"""Support for a rollout engine of another package instead of the backend's own engine."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import torch

from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.engine import EnginePlugin, EngineSetup, HostedEngine
from rllm_core.contracts.renderer import Renderer
from rllm_core.errors import BackendError
from rllm_local.fingerprints import plain_name
from rllm_local.lora import Adapter
from rllm_local.model import LoadedModel
from rllm_local.settings import LocalConfig
from rllm_serving.process_directory import ProcessDirectory

GIB = 1 << 30


class Hosting:
    """A `SamplingHalf` that owns a `HostedEngine` and sends it every version of the model's weights.

    It reads the model on the thread of `executor`.
    """

    def __init__(self, choice: PluginChoice[EnginePlugin[Any]], loaded: LoadedModel, executor: Executor) -> None:
        self.engine: HostedEngine = choice.plugin.load()(choice.params)
        self._loaded = loaded
        self._executor = executor

    async def start(self, renderer: Renderer, max_context: int, settings: LocalConfig) -> None:
        """Start the engine, and send it the model's weights as version 0."""
        with ProcessDirectory("rllm-local-") as files:
            directory = files.path
            await self._in_worker(_save_without_weights, self._loaded, directory)
            await self.engine.start(
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
        await self.engine.load_weights(weights.items(), version)

    def weights_change(self) -> None:
        """Do nothing, because the engine has its own copy of the weights."""

    def fail(self, error: BackendError) -> None:
        """Do nothing, because a run with a hosted engine has no separate training process."""

    async def close(self) -> None:
        """Stop the engine, even if its start failed."""
        await self.engine.close()

    async def _in_worker(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)


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
