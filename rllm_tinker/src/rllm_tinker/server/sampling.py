"""Sampling sessions, and samples from them."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from rllm_tinker.server import wire
from rllm_tinker.server.checkpoints import Checkpoint
from rllm_tinker.server.futures import Answer
from rllm_tinker.server.json_body import json_object, number_of, text_of
from rllm_tinker.server.messages import RequestRefused, Sampled
from rllm_tinker.server.refusals import Busy, Gone
from rllm_tinker.server.sample_request import SampleRequest, sample_request
from rllm_tinker.server.service import Service
from rllm_tinker.server.sessions import Sampler
from rllm_tinker.server.tinker_path import TinkerPath


class Sampling:
    """Operations on samplers."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._running: dict[str, asyncio.Task[None]] = {}
        self._loading = asyncio.Lock()

    async def create_session(self, body: bytes) -> Answer:
        """A sampling session for the base model or a checkpoint."""
        service, found = self._service, json_object(body)
        session = service.sessions.get(text_of(found, "session_id"))
        sampler_id = sampler_id_of(session.session_id, number_of(found, "sampling_session_seq_id"))
        if sampler_id not in session.samplers:
            if found.get("base_model") is not None:
                service.check_name(text_of(found, "base_model"))
            if found.get("model_path") is None:
                sampler = Sampler(sampler_id=sampler_id, base_model=text_of(found, "base_model"))
            else:
                sampler = await self._from_checkpoint(sampler_id, text_of(found, "model_path"))
            session.samplers[sampler_id] = sampler
        return wire.sampling_session(sampler_id)

    def add(self, sampler: Sampler) -> None:
        """A sampling session whose weights are in memory. Raises Gone when its session has ended meanwhile."""
        self._service.sessions.get(sampler.sampler_id).samplers[sampler.sampler_id] = sampler

    def submit(self, body: bytes) -> Answer:
        """Start to sample; one that is sent again is not sampled again."""
        service = self._service
        request = sample_request(body, service.host.base, service.limits.max_samples_per_request)
        sampler = service.sessions.sampler(request.sampler_id)
        request_id = f"{request.sampler_id}:{request.number}"
        if not service.futures.knows(request_id):
            if service.futures.pending >= service.limits.max_pending_samples:
                raise Busy(f"{service.futures.pending} requests are pending; send this one again later.")
            self._check_held(sampler)
            service.futures.open(request_id)
            task = service.spawn(self._serve(request_id, sampler, request))
            self._running[request_id] = task
        return wire.promise(request_id, samples=len(request.prompts))

    def cancel(self, body: bytes) -> Answer:
        """Stop sampling what its client no longer wants."""
        task = self._running.get(text_of(json_object(body), "request_id"))
        if task is not None:
            task.cancel()
        return wire.json_answer({})

    async def _serve(self, request_id: str, sampler: Sampler, request: SampleRequest) -> None:
        try:
            answer = await self._service.answer(self._sample(sampler, request), "Sampling")
        except asyncio.CancelledError:
            answer = wire.user_failure("The client cancelled this request.")
        self._running.pop(request_id, None)
        self._service.futures.finish(request_id, answer)

    async def _sample(self, sampler: Sampler, request: SampleRequest) -> Answer:
        weights = await self._weights(sampler)
        pool = self._service.samplers
        logprobs = None
        if request.prompt_logprobs:
            logprobs = (await pool.prompt_logprobs(weights, request.prompts[0])).astype(np.float32)
            if request.last_prompt_logprobs is not None:
                logprobs[: -request.last_prompt_logprobs] = np.nan
        if request.settings.max_tokens:
            samples = await pool.sample(weights, request.prompts, request.settings)
        else:
            # The prompt fills the context: only its log-probs were wanted.
            nothing = Sampled(tokens=np.empty(0, np.int32), logprobs=np.empty(0, np.float32), stop_reason="length")
            samples = [nothing] * len(request.prompts)
        return wire.samples_answer(samples, logprobs)

    def _check_held(self, sampler: Sampler) -> None:
        """Raise Gone when the weights have left memory and are not on disk."""
        held = sampler.snapshot is None or self._service.snapshots.get(sampler.snapshot) is not None
        if not held and sampler.model_path is None:
            raise Gone(
                f"The weights of sampling session {sampler.sampler_id} have expired: this server keeps the "
                f"{self._service.limits.max_snapshots} sets used last (--max-snapshots). Save the weights again with "
                "save_weights_and_get_sampling_client, or by name with save_weights_for_sampler: those stay on disk."
            )

    async def _weights(self, sampler: Sampler) -> Any:
        if sampler.snapshot is None:
            return None
        held = self._service.snapshots.get(sampler.snapshot)
        if held is None and sampler.model_path is not None:
            return await self._load(self._service.checkpoints.get(TinkerPath.parse(sampler.model_path)))
        self._check_held(sampler)
        return held

    async def _from_checkpoint(self, sampler_id: str, model_path: str) -> Sampler:
        checkpoint = self._service.checkpoints.get(TinkerPath.parse(model_path))
        check_base_model(self._service, checkpoint)
        await self._load(checkpoint)
        return Sampler(
            sampler_id=sampler_id,
            base_model=checkpoint.base_model,
            model_path=model_path,
            snapshot=_snapshot_key(checkpoint),
        )

    async def _load(self, checkpoint: Checkpoint) -> Any:
        """Sampling sessions of one checkpoint share its weights."""
        service, key = self._service, _snapshot_key(checkpoint)
        async with self._loading:
            weights = service.snapshots.get(key)
            if weights is None:
                folder = service.checkpoints.folder(checkpoint.path)
                weights = await service.in_worker(service.host.load_weights, folder)
                service.snapshots.put(key, weights, on_disk=True)
            return weights


def sampler_id_of(session_id: str, number: int) -> str:
    return f"{session_id}:sample:{number}"


def check_base_model(service: Service, checkpoint: Checkpoint) -> None:
    """Raise RequestRefused when the checkpoint was made on another base model than this server's."""
    if checkpoint.base_model not in service.names:
        raise RequestRefused(
            f"{checkpoint.path} was trained on {checkpoint.base_model!r}; this server has "
            f"{', '.join(map(repr, service.names))}. Start the server with that model."
        )


def _snapshot_key(checkpoint: Checkpoint) -> str:
    """A checkpoint that was overwritten is another one."""
    return f"{checkpoint.path}@{checkpoint.created}"
