"""Scenarios on a started backend `local`, and its engine as an engine of a different package."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.backend import RunContext
from rllm_core.contracts.engine import Completion, EngineSetup, NamedTensors, SamplingParams
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.weight_comparison import Probe
from rllm_core.errors import BackendError
from rllm_local.backend import LocalBackend
from rllm_local.engine import LocalEngine

Scenario = Callable[[LocalBackend, Any], Awaitable[Any]]


def run_scenario(context: RunContext, scenario: Scenario) -> Any:
    """Return the result of a scenario with a backend and its engine, and close the backend."""

    async def start_and_close() -> Any:
        backend = LocalBackend()
        try:
            return await asyncio.wait_for(scenario(backend, await backend.start(context)), 200)
        finally:
            await backend.close()

    return asyncio.run(start_and_close())


class HostedCopy:
    """Sample from the engine's own model, made only from its arguments."""

    def __init__(self, params: NoParams) -> None:
        self.calls: list[str] = []
        self.executor: ThreadPoolExecutor | None = None

    async def start(self, setup: EngineSetup) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        self.calls.append("start")
        self.setup, self.files = setup, sorted(path.name for path in setup.directory.iterdir())
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
        self.calls.append(f"load {version}")
        missing, unexpected = self.model.load_state_dict(dict(weights), strict=False)
        # The output layer is tied to the embedding, and given once.
        if missing != ["lm_head.weight"] or unexpected:
            raise BackendError("made-up", "The weights are from a different model.")
        self.engine.sync_weights(version)

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        return await self.engine.generate(prompt_ids, sampling, session=session)

    async def end_session(self, session: str) -> None:
        await self.engine.end_session(session)

    async def close(self) -> None:
        self.calls.append("close")
        if self.executor is not None:
            self.executor.shutdown()


class ScoringCopy(HostedCopy):
    """A hosted copy that reports its scores and digests."""

    async def score(self, probe: Probe) -> Mapping[str, NDArray[np.float32]]:
        (scores,) = (await self.engine.score(probe)).values()
        return {"replica 0": scores}

    async def digests(self, replica: str) -> Mapping[str, str]:
        return await self.engine.digests(replica)


class TwoReplicas(ScoringCopy):
    """Two hosted copies. The first samples."""

    async def start(self, setup: EngineSetup) -> None:
        self.second = ScoringCopy(NoParams())
        await super().start(setup)
        await self.second.start(setup)

    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        named = list(weights)
        await super().load_weights(named, version)
        await self.load_second(named, version)

    async def load_second(self, weights: NamedTensors, version: int) -> None:
        await self.second.load_weights(weights, version)

    async def score(self, probe: Probe) -> Mapping[str, NDArray[np.float32]]:
        (scores,) = (await self.second.score(probe)).values()
        return {**await super().score(probe), "replica 1": scores}

    async def digests(self, replica: str) -> Mapping[str, str]:
        return await (self.second if replica == "replica 1" else super()).digests(replica)

    async def close(self) -> None:
        await super().close()
        await self.second.close()
