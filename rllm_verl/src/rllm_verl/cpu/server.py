"""The rollout server: a Ray actor that samples from its own model. The trainer replaces the model's weights.

It never imports verl or GPU libraries. One thread computes, and the actor's event loop serves requests. They pass a
gate, which is closed while weights change and after verl's abort.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rllm_core.contracts.engine import SamplingParams
from rllm_core.contracts.weight_comparison import Probe
from rllm_core.errors import BackendError
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_local.engine import LocalEngine
from rllm_local.model import load_model
from rllm_local.settings import ModelSection
from rllm_verl.cpu.messages import Response, ServerSettings
from rllm_verl.cpu.weights import Bucket, StagedWeights

SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "seed")


class RolloutServer:
    """The server. It takes and returns token ids. One version of the weights samples a whole response."""

    def __init__(self, settings: ServerSettings) -> None:
        """Load the model.

        Raises:
            ConfigError: the model cannot be loaded, or the local engine cannot sample from it.
        """
        # More than one thread makes tiny models slower, in particular with many workers on a machine.
        torch.set_num_threads(1)
        loaded = load_model(ModelSection(name=settings.model, dtype=settings.dtype, device="cpu"), seed=0)
        self._model = loaded.model
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rllm-rollout")
        self._engine = LocalEngine(
            loaded.model,
            TemplateRenderer(loaded.tokenizer, loaded.stop_ids),
            self._executor,
            max_context=min(settings.max_context, loaded.max_context),
            max_concurrency=settings.max_concurrency,
            kv_cache_bytes=settings.kv_cache_bytes,
        )
        self._gate = Gate()
        self._asleep = False
        self._staged: StagedWeights | None = None

    @property
    def weight_version(self) -> int:
        """The training step of the current weights. 0 before the first update."""
        return self._engine.weight_version

    async def generate(
        self, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], request_id: str, **_: object
    ) -> Response:
        """Continue a prompt. Requests with the same id run one after the other and share a cached prefix.

        `sampling_params` are the parameters that `VerlEngine` sends. If they have ``prompt_logprobs``, nothing is
        sampled. verl's client adds images and sounds, all None.

        Raises:
            RolloutError: the prompt is empty, too long or has unknown tokens, or a forward pass failed.
        """
        if self._asleep:
            raise BackendError(
                "not-started",
                "The rollout server sleeps, because it has freed its weights.",
                "Call sync_weights before sampling.",
            )
        async with self._gate.enter() as admitted:
            if not admitted:
                return Response([], None, "aborted", self.weight_version)
            if "prompt_logprobs" in sampling_params:
                return await self._score(prompt_ids)
            return await self._sample(prompt_ids, sampling_params, request_id)

    async def digests(self) -> dict[str, str]:
        """Return the digests of the model's tensors by their names in a checkpoint."""
        return await self._engine.digests("")

    async def _score(self, prompt_ids: Sequence[int]) -> Response:
        (scores,) = (await self._engine.score(Probe(tokens=np.array([prompt_ids], np.int32), prompt=1))).values()
        logprobs = [[each] for each in [*scores.tolist(), 0.0]]
        return Response([], None, "completed", self.weight_version, logprobs)

    async def _sample(self, prompt_ids: Sequence[int], params: Mapping[str, Any], request_id: str) -> Response:
        sampling = SamplingParams(**{name: params[name] for name in SAMPLING})
        stop_ids = frozenset(params["stop_token_ids"])
        aborted = False

        def stops(sampled: NDArray[np.int32]) -> bool:
            nonlocal aborted
            done = int(sampled[-1]) in stop_ids
            aborted = self._gate.aborting and not done and len(sampled) < sampling.max_tokens
            return done or aborted

        completion = await self._engine.generate(prompt_ids, sampling, session=request_id, stops=stops)
        return Response(
            token_ids=completion.token_ids.tolist(),
            log_probs=completion.logprobs.tolist(),
            stop_reason="aborted" if aborted else "completed",
            weight_version=completion.weight_version,
        )

    async def stage_weights(self, bucket: Bucket) -> None:
        """Store a part of new weights, without using them yet. An invalid part also discards the previous parts.

        Raises:
            BackendError: the model has no weight with this name or shape.
        """
        staged = self._staged or StagedWeights(self._model)
        self._staged = None
        staged.add(bucket)
        self._staged = staged

    async def sync_weights(self, version: int) -> None:
        """Replace all weights with the staged weights, when the running responses are complete.

        Raises:
            BackendError: weights are missing. The model is then unchanged.
        """
        staged, self._staged = self._staged or StagedWeights(self._model), None
        staged.check_complete()
        async with self._gate.exclusive():
            await asyncio.get_running_loop().run_in_executor(self._executor, staged.write)
            self._engine.sync_weights(version)

    async def drop_staged_weights(self) -> None:
        """Discard the staged weights, because their sender has failed."""
        self._staged = None

    async def abort_all_requests(self, reject_request: bool = False) -> dict[str, int]:
        """Stop all responses after their current token. New requests wait or are rejected until `resume_generation`.

        verl later requests the rest of the stopped responses.
        """
        return {"aborted_count": await self._gate.abort(rejecting=reject_request)}

    async def resume_generation(self) -> None:
        """Serve again."""
        await self._gate.resume()

    async def wait_for_requests_to_drain(self) -> None:
        """Return when no request is being served."""
        async with self._gate.exclusive():
            return

    async def sleep(self) -> None:
        """Reject requests. A CPU frees no memory here, but sampling during this time would fail on a GPU."""
        self._asleep = True

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Accept requests again if verl restores the cache, not only the weights."""
        if tags is None or "kv_cache" in tags:
            self._asleep = False

    async def release_kv_cache(self) -> None: ...
    async def resume_kv_cache(self) -> None: ...

    async def clear_kv_cache(self) -> None:
        """Do nothing, because the cache is cleared at every change of weights."""

    async def start_profile(self, **options: object) -> None: ...
    async def stop_profile(self) -> None: ...


class Gate:
    """The gate. It counts the running requests and belongs to one event loop."""

    def __init__(self) -> None:
        self.aborting = False
        """True if running requests must stop after the current token."""
        self._rejecting = False
        self._shut_by = 0
        self._inside = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[bool]:
        """Wait until the gate is open, then count as a running request in this block. Yield False if rejected."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._shut_by == 0 or self._rejecting)
            if self._shut_by:
                admitted = False
            else:
                admitted = True
                self._inside += 1
        try:
            yield admitted
        finally:
            if admitted:
                await self._leave()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Close the gate for this block, and wait until no request is running."""
        self._shut_by += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: self._inside == 0)
            yield
        finally:
            await self._open()

    async def abort(self, *, rejecting: bool) -> int:
        """Close the gate until `resume`, stop the running requests, and return their number.

        If `rejecting` is True, new requests are rejected in the meantime. Otherwise they wait.
        """
        if not self.aborting:
            self._shut_by += 1
        self.aborting, self._rejecting = True, rejecting
        ended = self._inside
        async with self._changed:
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._inside == 0)
        return ended

    async def resume(self) -> None:
        """Undo `abort`. Do nothing if there was none."""
        if self.aborting:
            self.aborting = self._rejecting = False
            await self._open()

    async def _leave(self) -> None:
        async with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    async def _open(self) -> None:
        async with self._changed:
            self._shut_by -= 1
            self._changed.notify_all()
