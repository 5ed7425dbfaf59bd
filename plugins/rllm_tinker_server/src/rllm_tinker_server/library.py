"""Queries of models, checkpoints and sessions. They change no weights, and do not wait for a turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from rllm_tinker_server.checkpoints import Checkpoint, TinkerPath
from rllm_tinker_server.messages import RequestRefused
from rllm_tinker_server.owners import Owner
from rllm_tinker_server.refusals import NotFound, json_object, metadata_of, optional_number_of, text_of
from rllm_tinker_server.sampling import own_name
from rllm_tinker_server.service import Service
from rllm_tinker_server.sessions import TrainedModel
from rllm_tinker_server.turns import Answer
from rllm_tinker_server.wire import json_answer, records


class Library:
    """Operations on an owner's sessions, training runs and checkpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def create_session(self, owner: Owner, body: bytes) -> Answer:
        found = json_object(body)
        most, name = self._service.limits.max_metadata_bytes, found.get("display_name")
        if name is not None and (not isinstance(name, str) or len(name) > most):
            raise RequestRefused(f"display_name must be a text of {most} letters at most.")
        session = self._service.open_session(owner, metadata_of(found, most), name)
        return records.session_created(session.session_id)

    def heartbeat(self, owner: Owner, body: bytes) -> Answer:
        self._service.sessions.get(text_of(json_object(body), "session_id"), owner)
        return records.session_alive()

    async def finish_session(self, owner: Owner, session_id: str) -> Answer:
        """Release what the session has. One that has ended is not an error: clients repeat themselves."""
        for session in self._service.sessions.list_of(owner):
            if session.session_id == session_id:
                await self._service.end_session(session, "was finished by its client.")
        return json_answer({})

    def session(self, owner: Owner, session_id: str) -> Answer:
        return records.session_info(self._service.sessions.get(session_id, owner))

    def session_list(self, owner: Owner) -> Answer:
        return records.session_list([session.session_id for session in self._service.sessions.list_of(owner)])

    def sampler(self, owner: Owner, sampler_id: str) -> Answer:
        return records.sampler_info(self._service.sessions.sampler(sampler_id, owner))

    def model(self, owner: Owner, body: bytes) -> Answer:
        model = self._service.sessions.model(text_of(json_object(body), "model_id"), owner)
        return records.model_info(model, self._service.host.base)

    def weights_info(self, owner: Owner, body: bytes) -> Answer:
        path = TinkerPath.parse(text_of(json_object(body), "tinker_path"))
        checkpoint = self._service.checkpoints.get(path, owner)
        # Clients ask for a model of this name next.
        return records.weights_info(replace(checkpoint, base_model=own_name(self._service, checkpoint)))

    def capabilities(self) -> Answer:
        return records.capabilities(self._service.names, self._service.host.base)

    def checkpoint_list(self, owner: Owner, offset: int, limit: int) -> Answer:
        """Return the checkpoints of all models, newest first."""
        store = self._service.checkpoints
        found = [checkpoint for model_id in store.model_ids() for checkpoint in store.of_model(model_id, owner)]
        found.sort(key=lambda checkpoint: -checkpoint.created)
        return records.checkpoint_list(found[offset : offset + limit], offset=offset, limit=limit, total=len(found))

    def checkpoints_of(self, owner: Owner, model_id: str) -> Answer:
        found = self._service.checkpoints.of_model(model_id, owner)
        if not found:
            self._check_is_live(owner, model_id)
        return records.checkpoint_list(found, offset=0, limit=len(found), total=len(found))

    def training_run(self, owner: Owner, model_id: str) -> Answer:
        checkpoints = self._service.checkpoints.of_model(model_id, owner)
        model = self._live(owner).get(model_id)
        if not checkpoints:
            self._check_is_live(owner, model_id)
        return json_answer(records.training_run(model_id, model, checkpoints))

    def training_run_list(self, owner: Owner, offset: int, limit: int) -> Answer:
        """Models that are trained now or have left checkpoints, the one used last first."""
        live, store = self._live(owner), self._service.checkpoints
        left: dict[str, list[Checkpoint]] = {each: store.of_model(each, owner) for each in store.model_ids()}
        model_ids = [model_id for model_id in {**left, **live} if model_id in live or left[model_id]]
        runs = [records.training_run(model_id, live.get(model_id), left.get(model_id, [])) for model_id in model_ids]
        runs.sort(key=lambda run: str(run["last_request_time"]), reverse=True)
        return records.training_run_list(runs[offset : offset + limit], offset=offset, limit=limit, total=len(runs))

    def download_urls(self, owner: Owner, model_id: str, kind: str, name: str, *, base: str) -> Answer:
        """See `Downloads.urls`."""
        return records.download_urls(*self._service.downloads.urls(_path(model_id, kind, name), owner, base))

    def download(self, id: str, kind: str, name: str, file: str, query: Mapping[str, str]) -> Path:
        """See `Downloads.file`."""
        return self._service.downloads.file(_path(id, kind, name), file, query)

    async def delete_checkpoint(self, owner: Owner, model_id: str, kind: str, name: str) -> Answer:
        path = _path(model_id, kind, name)
        await self._service.in_worker(owner, self._service.checkpoints.delete, path, owner)
        return json_answer({})

    async def publish_checkpoint(self, owner: Owner, model_id: str, kind: str, name: str) -> Answer:
        """Let every key read a checkpoint."""
        return await self._set_public(owner, _path(model_id, kind, name), public=True)

    async def unpublish_checkpoint(self, owner: Owner, model_id: str, kind: str, name: str) -> Answer:
        return await self._set_public(owner, _path(model_id, kind, name), public=False)

    async def set_expiry(self, owner: Owner, model_id: str, kind: str, name: str, body: bytes) -> Answer:
        found, path = json_object(body), _path(model_id, kind, name)
        seconds = optional_number_of(found, "ttl_seconds")
        await self._service.in_worker(owner, self._service.checkpoints.set_expiry, path, seconds, owner)
        return json_answer({})

    async def _set_public(self, owner: Owner, path: TinkerPath, *, public: bool) -> Answer:
        """No error if nothing changes: clients would repeat the service's status 409 for minutes."""
        change = partial(self._service.checkpoints.set_public, path, owner, public=public)
        await self._service.in_worker(owner, change)
        return json_answer({})

    def _live(self, owner: Owner) -> dict[str, TrainedModel]:
        return {
            key: model for session in self._service.sessions.list_of(owner) for key, model in session.models.items()
        }

    def _check_is_live(self, owner: Owner, model_id: str) -> None:
        if model_id not in self._live(owner):
            raise NotFound(f"No model {model_id!r} is trained here, and none of that id has left checkpoints.")


def _path(model_id: str, kind: str, name: str) -> TinkerPath:
    return TinkerPath.parse(f"tinker://{model_id}/{kind}/{name}")
