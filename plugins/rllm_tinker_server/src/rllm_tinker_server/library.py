"""Queries of models, checkpoints and sessions. They change no weights, and do not wait for a turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from rllm_tinker_server.checkpoints import Checkpoint, TinkerPath
from rllm_tinker_server.messages import RequestRefused
from rllm_tinker_server.refusals import NotFound, json_object, metadata_of, optional_number_of, text_of
from rllm_tinker_server.sampling import own_name
from rllm_tinker_server.service import Service
from rllm_tinker_server.sessions import TrainedModel
from rllm_tinker_server.turns import Answer
from rllm_tinker_server.wire import json_answer, records


class Library:
    """Operations on sessions, and on what training has left behind."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def create_session(self, body: bytes) -> Answer:
        found = json_object(body)
        most, name = self._service.limits.max_metadata_bytes, found.get("display_name")
        if name is not None and (not isinstance(name, str) or len(name) > most):
            raise RequestRefused(f"display_name must be a text of {most} letters at most.")
        session = self._service.open_session(metadata_of(found, most), name)
        return records.session_created(session.session_id)

    def heartbeat(self, body: bytes) -> Answer:
        self._service.sessions.get(text_of(json_object(body), "session_id"))
        return records.session_alive()

    async def finish_session(self, session_id: str) -> Answer:
        """Release what the session has. One that has ended is not an error: clients repeat themselves."""
        for session in self._service.sessions:
            if session.session_id == session_id:
                await self._service.end_session(session, "was finished by its client.")
        return json_answer({})

    def session(self, session_id: str) -> Answer:
        return records.session_info(self._service.sessions.get(session_id))

    def session_list(self) -> Answer:
        return records.session_list([session.session_id for session in self._service.sessions])

    def sampler(self, sampler_id: str) -> Answer:
        return records.sampler_info(self._service.sessions.sampler(sampler_id))

    def model(self, body: bytes) -> Answer:
        model = self._service.sessions.model(text_of(json_object(body), "model_id"))
        return records.model_info(model, self._service.host.base)

    def weights_info(self, body: bytes) -> Answer:
        path = TinkerPath.parse(text_of(json_object(body), "tinker_path"))
        checkpoint = self._service.checkpoints.get(path)
        # Clients ask for a model of this name next.
        return records.weights_info(replace(checkpoint, base_model=own_name(self._service, checkpoint)))

    def capabilities(self) -> Answer:
        return records.capabilities(self._service.names, self._service.host.base)

    def checkpoint_list(self, offset: int, limit: int) -> Answer:
        """Return the checkpoints of all models, newest first."""
        store = self._service.checkpoints
        found = [checkpoint for model_id in store.model_ids() for checkpoint in store.of_model(model_id)]
        found.sort(key=lambda checkpoint: -checkpoint.created)
        return records.checkpoint_list(found[offset : offset + limit], offset=offset, limit=limit, total=len(found))

    def checkpoints_of(self, model_id: str) -> Answer:
        found = self._service.checkpoints.of_model(model_id)
        if not found:
            self._live_or_missing(model_id)
        return records.checkpoint_list(found, offset=0, limit=len(found), total=len(found))

    def training_run(self, model_id: str) -> Answer:
        checkpoints = self._service.checkpoints.of_model(model_id)
        model = self._live().get(model_id)
        if not checkpoints and model is None:
            self._live_or_missing(model_id)
        return json_answer(records.training_run(model_id, model, checkpoints))

    def training_run_list(self, offset: int, limit: int) -> Answer:
        """Models that are trained now or have left checkpoints, the one used last first."""
        live, store = self._live(), self._service.checkpoints
        left: dict[str, list[Checkpoint]] = {model_id: store.of_model(model_id) for model_id in store.model_ids()}
        model_ids = [model_id for model_id in {**left, **live} if model_id in live or left[model_id]]
        runs = [records.training_run(model_id, live.get(model_id), left.get(model_id, [])) for model_id in model_ids]
        runs.sort(key=lambda run: str(run["last_request_time"]), reverse=True)
        return records.training_run_list(runs[offset : offset + limit], offset=offset, limit=limit, total=len(runs))

    def download_urls(self, model_id: str, kind: str, name: str, base: str) -> Answer:
        """See `Downloads.urls`."""
        return records.download_urls(*self._service.downloads.urls(_path(model_id, kind, name), base))

    def download(self, id: str, kind: str, name: str, file: str, query: Mapping[str, str]) -> Path:
        """See `Downloads.file`."""
        return self._service.downloads.file(_path(id, kind, name), file, query)

    async def delete_checkpoint(self, model_id: str, kind: str, name: str) -> Answer:
        path = _path(model_id, kind, name)
        await self._service.in_worker(self._service.checkpoints.delete, path)
        return json_answer({})

    async def set_expiry(self, model_id: str, kind: str, name: str, body: bytes) -> Answer:
        found, path = json_object(body), _path(model_id, kind, name)
        seconds = optional_number_of(found, "ttl_seconds")
        await self._service.in_worker(partial(self._service.checkpoints.set_expiry, path, seconds))
        return json_answer({})

    def _live(self) -> dict[str, TrainedModel]:
        return {model_id: model for session in self._service.sessions for model_id, model in session.models.items()}

    def _live_or_missing(self, model_id: str) -> None:
        if model_id not in self._live():
            raise NotFound(f"No model {model_id!r} is trained here, and none of that id has left checkpoints.")


def _path(model_id: str, kind: str, name: str) -> TinkerPath:
    return TinkerPath.parse(f"tinker://{model_id}/{kind}/{name}")
