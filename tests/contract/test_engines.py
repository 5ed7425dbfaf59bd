"""The engine of the local backend keeps the contract of engines, with its own model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rllm_core.contracts import Completion, EnginePlugin, EngineSetup, NamedTensors, NoParams, SamplingParams
from rllm_core.errors import BackendError
from rllm_local.engine import LocalEngine
from rllm_plugin_kit import EngineContract


class Hosted:
    """The engine of the local backend with its own model, which receives weights."""

    def __init__(self, params: NoParams) -> None:
        self.executor: ThreadPoolExecutor | None = None

    async def start(self, setup: EngineSetup) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        self.renderer, self.max_context = setup.renderer, setup.max_context
        self.model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(setup.directory)).eval()
        self.executor = ThreadPoolExecutor(max_workers=1)
        self.engine = LocalEngine(
            self.model,
            setup.renderer,
            self.executor,
            max_context=setup.max_context,
            max_concurrency=setup.max_concurrency,
            kv_cache_bytes=setup.kv_cache_bytes,
        )

    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        missing, strange = self.model.load_state_dict(dict(weights), strict=False)
        if missing != ["lm_head.weight"] or strange:
            raise BackendError("made-up", "The weights are another model's.")
        self.engine.sync_weights(version)

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        return await self.engine.generate(prompt_ids, sampling, session=session)

    async def end_session(self, session: str) -> None:
        await self.engine.end_session(session)

    async def close(self) -> None:
        if self.executor is not None:
            self.executor.shutdown()


class TestLocal(EngineContract):
    def record(self) -> EnginePlugin[NoParams]:
        return EnginePlugin(
            name="local", summary="That of rllm-local.", params=NoParams, load=lambda: Hosted, stop_texts=True
        )
