"""Sampling sessions, and samples from them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from rllm_core.seeding import derive_seed
from rllm_tinker_server import wire
from rllm_tinker_server.checkpoints import Checkpoint, TinkerPath
from rllm_tinker_server.fairness import SharedLimit
from rllm_tinker_server.messages import SampledSequence, Scores, ScoreSettings
from rllm_tinker_server.owners import Owner
from rllm_tinker_server.request_errors import BusyError, GoneError, json_object, number_of, text_of
from rllm_tinker_server.sample_request import SampleRequest, check_settings, rows_of, sample_request
from rllm_tinker_server.service import Service
from rllm_tinker_server.sessions import SamplingSession
from rllm_tinker_server.turns import Answer


class Sampling:
    """Operations on an owner's samplers."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._running: dict[tuple[str, Owner], asyncio.Task[Answer]] = {}
        self._requests = SharedLimit(service.limits.max_pending_samples)
        self._tokens = SharedLimit(service.limits.max_pending_sample_tokens)
        self._loading = asyncio.Lock()

    async def create_session(self, owner: Owner, body: bytes) -> Answer:
        """A sampling session for the base model or a checkpoint."""
        service, found = self._service, json_object(body)
        session = service.sessions.get(text_of(found, "session_id"), owner)
        sampler_id = sampler_id_of(session.session_id, number_of(found, "sampling_session_seq_id"))
        if sampler_id not in session.samplers:
            if found.get("base_model") is not None:
                service.check_name(text_of(found, "base_model"))
            if found.get("model_path") is None:
                name = text_of(found, "base_model")
                sampler = SamplingSession(sampler_id=sampler_id, owner=owner, base_model=name)
            else:
                sampler = await self._from_checkpoint(sampler_id, owner, text_of(found, "model_path"))
            service.sessions.add_sampler(sampler)
        return wire.create_sampling_session_response(sampler_id)

    async def compare_tensors(self, owner: Owner, body: bytes) -> Answer:
        """Return the tensors of a sampler that differ from a model's trained weights (`tinker_additions`)."""
        service, found = self._service, json_object(body)
        sampler = service.sessions.sampler(text_of(found, "sampler_id"), owner)
        trained = await self._weights_of_model(owner, found)
        sent = await self._weights(sampler)
        different = await service.samplers.different_tensors(sent, trained, client=owner.name)
        return wire.json_answer({"tensors": different})

    async def score_suspects(self, owner: Owner, body: bytes) -> Answer:
        """Return the log-probs of rows with faults of a model's trained weights (`tinker_additions`)."""
        service, found = self._service, json_object(body)
        rows = rows_of(found, service.host.base)
        trained = await self._weights_of_model(owner, found)
        scores = await service.samplers.score_suspects(trained, rows, client=owner.name)
        by_name = {fault.name: [row.tolist() for row in of_rows] for fault, of_rows in scores.items()}
        return wire.json_answer({"suspects": by_name})

    async def _weights_of_model(self, owner: Owner, found: Mapping[str, Any]) -> Any:
        model = self._service.sessions.model(text_of(found, "model_id"), owner)
        return await self._service.in_worker(owner, self._service.host.weights, model.model_id)

    def submit(self, owner: Owner, body: bytes) -> Answer:
        """Start to sample; one that is sent again is not sampled again."""
        service = self._service
        request = sample_request(body, service.host.base, service.limits)
        sampler = service.sessions.sampler(request.sampler_id, owner)
        request_id = f"{request.sampler_id}:{request.number}"
        if not service.futures.knows(request_id, owner):
            self._check_room(owner, request)
            self._check_weights_exist(sampler)
            service.futures.open(request_id, owner)
            self._requests.add(owner.name, 1)
            self._tokens.add(owner.name, request.most_tokens)
            task = service.spawn(self._serve(sampler, request))
            self._running[request_id, owner] = task
            # Not at the end of the task: one that is cancelled before it has begun never gets there.
            task.add_done_callback(partial(self._finish, request_id, owner, request.most_tokens))
        return wire.future_response(request_id, samples=len(request.prompts))

    def cancel(self, owner: Owner, body: bytes) -> Answer:
        """Stop sampling what its client no longer wants."""
        task = self._running.get((text_of(json_object(body), "request_id"), owner))
        if task is not None:
            task.cancel()
        return wire.json_answer({})

    async def _serve(self, sampler: SamplingSession, request: SampleRequest) -> Answer:
        return await self._service.answer(self._sample(sampler, request), "Sampling")

    def _finish(self, request_id: str, owner: Owner, tokens: int, task: asyncio.Task[Answer]) -> None:
        del self._running[request_id, owner]
        self._requests.remove(owner.name, 1)
        self._tokens.remove(owner.name, tokens)
        cancelled = wire.user_error("The client cancelled this request.")
        self._service.futures.finish(request_id, cancelled if task.cancelled() else task.result())

    async def _sample(self, sampler: SamplingSession, request: SampleRequest) -> Answer:
        check_settings(request.settings)
        weights, client = await self._weights(sampler), sampler.owner.name
        pool = self._service.samplers
        about_prompt = None
        if request.scores_prompt:
            about_prompt = await pool.score(weights, request.prompts[0], _score_settings(request), client=client)
            if request.last_prompt_logprobs is not None:
                _hide_positions(about_prompt, request.last_prompt_logprobs)
        if request.settings.max_tokens:
            samples = await pool.sample(weights, request.prompts, request.settings, client=client)
            if request.top_of_samples:
                score = partial(pool.score, weights, client=client)
                samples = [await _with_top(score, request, index, each) for index, each in enumerate(samples)]
        else:
            # The prompt fills the context: only its log-probs were wanted.
            nothing = SampledSequence(
                tokens=np.empty(0, np.int32), logprobs=np.empty(0, np.float32), stop_reason="length"
            )
            samples = [nothing] * len(request.prompts)
        return wire.samples_answer(samples, about_prompt, request)

    def _check_room(self, owner: Owner, request: SampleRequest) -> None:
        """Raise BusyError when too much is being sampled already. One request is taken in any case."""
        if not self._requests.has_room(owner.name, 1):
            raise BusyError(f"{self._requests.used} requests are pending. Send this one again later.")
        if not self._tokens.has_room(owner.name, request.most_tokens):
            raise BusyError(f"Samples of {self._tokens.used} tokens are pending. Send this request again later.")

    def _check_weights_exist(self, sampler: SamplingSession) -> None:
        """Raise GoneError when the weights have left memory and are not on disk."""
        held = sampler.snapshot is None or self._service.snapshots.get(sampler.snapshot) is not None
        if not held and sampler.model_path is None:
            raise GoneError(
                f"The weights of sampling session {sampler.sampler_id} have expired: this server keeps the "
                f"{self._service.limits.max_snapshots} sets used last (--max-snapshots). Save the weights again with "
                "save_weights_and_get_sampling_client, or by name with save_weights_for_sampler: those stay on disk."
            )

    async def _weights(self, sampler: SamplingSession) -> Any:
        if sampler.snapshot is None:
            return None
        held = self._service.snapshots.get(sampler.snapshot)
        if held is None and sampler.model_path is not None:
            checkpoint = self._service.checkpoints.get(TinkerPath.parse(sampler.model_path), sampler.owner)
            return await self._load(sampler.owner, checkpoint)
        self._check_weights_exist(sampler)
        return held

    async def _from_checkpoint(self, sampler_id: str, owner: Owner, model_path: str) -> SamplingSession:
        checkpoint = self._service.checkpoints.get(TinkerPath.parse(model_path).require_loadable(), owner)
        await self._load(owner, checkpoint)
        return SamplingSession(
            sampler_id=sampler_id,
            owner=owner,
            base_model=own_name(self._service, checkpoint),
            model_path=model_path,
            snapshot=_snapshot_key(owner, checkpoint),
        )

    async def _load(self, owner: Owner, checkpoint: Checkpoint) -> Any:
        """An owner's sampling sessions of one checkpoint share its weights."""
        service, key = self._service, _snapshot_key(owner, checkpoint)
        async with self._loading:
            weights = service.snapshots.get(key)
            if weights is None:
                directory = service.checkpoints.directory(checkpoint.path)
                weights = await service.in_worker(owner, service.host.load_weights, directory)
                service.snapshots.put(key, weights, owner=owner.name, on_disk=True)
            return weights


def _score_settings(request: SampleRequest) -> ScoreSettings:
    settings = request.settings
    return ScoreSettings(
        top=request.top_of_prompt,
        targets=None if request.targets is None else request.targets.tokens,
        draws=request.draws,
        draw_temperature=settings.temperature,
        seed=derive_seed(secrets.randbits(63) if settings.seed is None else settings.seed, "draws"),
    )


async def _with_top(
    score: Callable[..., Awaitable[Scores]], request: SampleRequest, index: int, sampled: SampledSequence
) -> SampledSequence:
    """Return a sample with the likeliest tokens at each position, from a pass over prompt and sample."""
    prompt = request.prompts[index]
    given = np.concatenate((prompt, sampled.tokens))
    settings = ScoreSettings(top=request.top_of_samples, temperature=request.settings.temperature or 1.0)
    scores = await score(given, settings)
    return replace(sampled, top=None if scores.top is None else scores.top.since(len(prompt)))


def _hide_positions(scores: Scores, last: int) -> None:
    """All but the last positions."""
    scores.logprobs[:-last] = np.nan
    if scores.top is not None:
        scores.top.logprobs[:-last] = np.nan


def sampler_id_of(session_id: str, number: int) -> str:
    return f"{session_id}:sample:{number}"


def own_name(service: Service, checkpoint: Checkpoint) -> str:
    """Return this server's name of a checkpoint's base model. The name may have been different at the time of the save.

    The host checks that the model is the same when it loads the weights.
    """
    return checkpoint.base_model if checkpoint.base_model in service.names else service.names[0]


def _snapshot_key(owner: Owner, checkpoint: Checkpoint) -> str:
    """Return a key of an owner's copy of the checkpoint's weights. It changes if the checkpoint is overwritten."""
    return f"{owner.name}:{checkpoint.path}@{checkpoint.created}"
