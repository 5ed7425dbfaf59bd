"""Queries of models, checkpoints and sessions, and signed downloads. They change no weights and need no turn."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlencode

from rllm_local.adapter_files import CONFIG, WEIGHTS
from rllm_tinker_server.checkpoints import EXTERNAL, Checkpoint, Checkpoints, TinkerPath
from rllm_tinker_server.messages import RequestError
from rllm_tinker_server.owners import Owner
from rllm_tinker_server.request_errors import (
    ForbiddenError,
    NotFoundError,
    json_object,
    metadata_of,
    optional_number_of,
    text_of,
)
from rllm_tinker_server.sampling import own_name
from rllm_tinker_server.service import Service
from rllm_tinker_server.sessions import TrainedModel
from rllm_tinker_server.turns import Answer
from rllm_tinker_server.wire import json_answer, records

FILES = (CONFIG, WEIGHTS)
"""Files of a checkpoint that other programs can read."""
VALID = 3600.0
"""Lifetime of a URL in seconds. The client requests new URLs five minutes before they expire."""


class Downloads:
    """Signs URLs and checks them. URLs of a server that has been restarted are not valid any more."""

    def __init__(self, checkpoints: Checkpoints, clock: Callable[[], float] = time.time) -> None:
        self._checkpoints = checkpoints
        self._clock = clock
        self._secret = secrets.token_bytes(32)

    def urls(self, path: TinkerPath, owner: Owner, base: str) -> tuple[dict[str, str], float]:
        """Return the files' URLs by name, and their expiry in seconds since the epoch.

        Args:
            path: path of a checkpoint for other programs.
            owner: holder of the key that requests the URLs. Anyone can use them, without a key.
            base: base URL of files as the client sees it, such as ``http://127.0.0.1:8017/api/v1/files``.

        Raises:
            RequestError: the checkpoint has a different kind.
            NotFoundError: the checkpoint does not exist.
        """
        if path.kind != EXTERNAL:
            raise RequestError(f"{path} cannot be downloaded. Export it with save_weights_external first.")
        self._checkpoints.get(path, owner)
        expires = int(self._clock() + VALID)
        urls = {}
        for name in FILES:
            signed = urlencode({"expires": expires, "signature": self._signature(path, name, expires)})
            urls[name] = f"{base}/{quote(path.model_id)}/{path.checkpoint_id}/{name}?{signed}"
        return urls, float(expires)

    def file(self, path: TinkerPath, name: str, query: Mapping[str, str]) -> Path:
        """Return the path of the file for a URL.

        Raises:
            ForbiddenError: this server did not sign the URL, or the URL has expired.
            NotFoundError: the checkpoint has been deleted.
        """
        expires = query.get("expires", "")
        is_number = expires.isdecimal() and len(expires) < 20
        expected = self._signature(path, name, int(expires)) if is_number else ""
        if not is_number or not hmac.compare_digest(query.get("signature", "").encode(), expected.encode()):
            raise ForbiddenError("This URL was not signed by this server. Request new URLs.")
        if int(expires) < self._clock():
            raise ForbiddenError("This URL has expired. Request new URLs.")
        file = self._checkpoints.directory(path) / name
        if not file.is_file():
            raise NotFoundError(f"{path} has no file {name}.")
        return file

    def _signature(self, path: TinkerPath, name: str, expires: int) -> str:
        return hmac.digest(self._secret, f"{path}\n{name}\n{expires}".encode(), "sha256").hex()


class Library:
    """Operations on an owner's sessions, training runs and checkpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._downloads = Downloads(service.checkpoints)

    def create_session(self, owner: Owner, body: bytes) -> Answer:
        found = json_object(body)
        most, name = self._service.limits.max_metadata_bytes, found.get("display_name")
        if name is not None and (not isinstance(name, str) or len(name) > most):
            raise RequestError(f"display_name must be a text of {most} letters at most.")
        session = self._service.open_session(owner, metadata_of(found, most), name)
        return records.create_session_response(session.session_id)

    def heartbeat(self, owner: Owner, body: bytes) -> Answer:
        self._service.sessions.get(text_of(json_object(body), "session_id"), owner)
        return records.heartbeat_response()

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

    def health(self) -> Answer:
        return records.health_response(self._service.host.base)

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
        """Return the signed URLs of a checkpoint's files; see `Downloads.urls`."""
        return records.download_urls(*self._downloads.urls(_path(model_id, kind, name), owner, base))

    def download(self, id: str, kind: str, name: str, file: str, query: Mapping[str, str]) -> Path:
        """Return the path of the file for a URL; see `Downloads.file`."""
        return self._downloads.file(_path(id, kind, name), file, query)

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
            raise NotFoundError(f"No model {model_id!r} is trained here, and none of that id has left checkpoints.")


def _path(model_id: str, kind: str, name: str) -> TinkerPath:
    return TinkerPath.parse(f"tinker://{model_id}/{kind}/{name}")
