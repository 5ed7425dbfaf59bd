"""`VllmEngine`: sample with vLLM in separate processes. It receives and returns token ids, never text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, EngineSetup, NamedTensors, SamplingParams
from rllm_core.contracts.renderer import Renderer
from rllm_core.errors import BackendError
from rllm_core.rollout.prompts import checked_prompt
from rllm_serving.process_directory import ProcessDirectory
from rllm_vllm.messages import Generate, LoadWeights, Sampled, Start, Started
from rllm_vllm.options import VllmOptions
from rllm_vllm.process import ServerProcess
from rllm_vllm.tokenizer import Marks

END = 15.0
"""Seconds that vLLM has to stop by itself at the end of a run."""


class VllmEngine:
    """A `HostedEngine` with vLLM. vLLM's prefix cache keeps common prefixes of prompts."""

    renderer: Renderer
    max_context: int

    def __init__(self, options: VllmOptions) -> None:
        self._options = options
        self._files: ProcessDirectory | None = None
        self._process: ServerProcess | None = None

    @property
    def process_group(self) -> int:
        """Id of the process group of vLLM's processes."""
        if self._process is None:
            raise BackendError("not-started", "The engine vllm is not running.", "Call start() first.")
        return self._process.pid

    async def start(self, setup: EngineSetup) -> None:
        """See `HostedEngine.start`. vLLM's weights are random until `load_weights`."""
        self.renderer = setup.renderer
        self._stop_ids = tuple(sorted(setup.renderer.stop_ids))
        self._files = ProcessDirectory("rllm-vllm-")
        self._process = ServerProcess.spawn(self._files.path, self._options.threads)
        await self._process.connect()
        started: Started = await self._process.ask(
            Start(_arguments(setup, self._options), Marks(self._stop_ids, setup.renderer.reasoning_ids)),
            "Starting vLLM",
            within=self._options.start_timeout,
            option="start_timeout",
        )
        self.max_context = started.max_context

    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        """See `HostedEngine.load_weights`."""
        from rllm_vllm.weight_files import weight_files

        with ExitStack() as stack:
            directory = await asyncio.to_thread(stack.enter_context, weight_files(weights))
            await self._running().ask(
                LoadWeights(str(directory), version),
                "Giving vLLM new weights",
                within=self._options.load_timeout,
                option="load_timeout",
            )

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """Sample a response. See `RolloutEngine.generate`.

        Raises:
            BackendError: vLLM fails, ends, or takes too long.
        """
        prompt, room = checked_prompt(prompt_ids, replace(sampling, json_schema=None), self.max_context)
        asked = Generate(
            prompt_ids=tuple(prompt.tolist()),
            max_tokens=room,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=sampling.seed,
            stop_ids=self._stop_ids,
            json_schema=sampling.json_schema,
        )
        sampled: Sampled = await self._running().ask(
            asked, "Sampling with vLLM", within=self._options.generate_timeout, option="generate_timeout"
        )
        return Completion(
            token_ids=np.array(sampled.token_ids, np.int32),
            logprobs=np.array(sampled.logprobs, np.float32),
            finish_reason=sampled.finish_reason,
            weight_version=min(span.version for span in sampled.version_spans),
            version_spans=sampled.version_spans,
        )

    async def end_session(self, session: str) -> None:
        """Do nothing. vLLM's cache drops the entries that were not used for the longest time."""

    async def close(self) -> None:
        """See `HostedEngine.close`."""
        if self._process is not None:
            await self._process.close(END)
        if self._files is not None:
            self._files.close()
        self._files = None

    def _running(self) -> ServerProcess:
        if self._process is None or self._files is None:
            raise BackendError("not-started", "The engine vllm is not running.", "Call start() first.")
        return self._process


def _arguments(setup: EngineSetup, options: VllmOptions) -> dict[str, object]:
    """Return the arguments of vLLM's ``AsyncEngineArgs``. `options.OURS` contains the names that are set here."""
    return {
        **options.engine_args,
        "model": str(setup.directory),
        "tokenizer": str(setup.directory),
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "load_format": "dummy",
        "dtype": setup.dtype,
        "max_model_len": setup.max_context,
        "max_num_seqs": setup.max_concurrency,
        "kv_cache_memory_bytes": setup.kv_cache_bytes,
        "tensor_parallel_size": options.tensor_parallel_size,
        "enforce_eager": options.enforce_eager,
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": "rllm_vllm.worker.RllmWorker",
        "disable_log_stats": True,
    }
