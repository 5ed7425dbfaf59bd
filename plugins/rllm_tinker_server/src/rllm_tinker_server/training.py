"""The operations on LoRA models. Each is accepted at once and executed when its turn has come."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rllm_tinker_server import wire
from rllm_tinker_server.checkpoints import EXTERNAL, Checkpoint, Kind, TinkerPath
from rllm_tinker_server.messages import RequestError
from rllm_tinker_server.owners import Owner
from rllm_tinker_server.request_errors import json_object, metadata_of, number_of, optional_number_of, text_of
from rllm_tinker_server.sampling import own_name, sampler_id_of
from rllm_tinker_server.service import Service, inflight_key
from rllm_tinker_server.sessions import SamplingSession, TrainedModel
from rllm_tinker_server.turns import Answer
from rllm_tinker_server.wire.forward_backward import forward_backward_of, forward_backward_request

Found = Mapping[str, Any]
Operation = Callable[[TrainedModel, Found], Awaitable[Answer]]


class Training:
    """Operations on an owner's models.

    Errors of a numbered request are in its result. If the server rejected the request at once, its number would be
    missing, and later requests would wait for it.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    def create_model(self, owner: Owner, body: bytes) -> Answer:
        """A new LoRA model."""
        found = json_object(body)
        model_id = self._new_model_id(owner, found)
        if self._is_known(owner, model_id):
            return wire.future_response(f"{model_id}:0", model_id)
        name = text_of(found, "base_model")
        self._service.check_name(name)
        wire.check_optimizer(found)
        model = self._service.add_model(model_id, owner, name, wire.lora_spec(found), self._metadata(found))

        async def create() -> Answer:
            await self._service.in_worker(owner, self._service.host.create, model_id, model.spec)
            return wire.create_model_response(model_id)

        return self._begin(model, "create_model", create)

    def load_weights(self, owner: Owner, body: bytes) -> Answer:
        """A new model from a checkpoint, or a checkpoint into an existing model, as older clients do it."""
        found = json_object(body)
        if found.get("session_id") is None:
            return self.submit(owner, "load_weights", body, self._load_into)
        model_id = self._new_model_id(owner, found)
        if self._is_known(owner, model_id):
            return wire.future_response(f"{model_id}:0", model_id)
        wire.check_optimizer(found)
        checkpoint = self._checkpoint(owner, found)
        name = found.get("base_model") or own_name(self._service, checkpoint)
        self._service.check_name(name)
        model = self._service.add_model(model_id, owner, name, checkpoint.spec, self._metadata(found))
        return self._begin(model, "load_weights", partial(self._load, model, checkpoint, found))

    def forward_backward(self, owner: Owner, body: bytes) -> Answer:
        """Queue a forward and backward pass. The body is protobuf."""
        request = forward_backward_request(body)
        model = self._service.sessions.model(request.model_id, owner)

        def compute() -> Answer:
            parsed = forward_backward_of(request, self._service.limits)
            return wire.forward_backward_answer(self._service.host.forward_backward(model.model_id, parsed))

        async def execute() -> Answer:
            return await self._service.answer(self._service.in_worker(owner, compute), "forward_backward")

        kind = "forward" if request.message.forward_only else "forward_backward"
        return wire.future_response(model.turns.submit(request.number, kind, len(body), execute), model.model_id)

    def optim_step(self, owner: Owner, body: bytes) -> Answer:
        return self.submit(owner, "optim_step", body, self._step)

    def save_weights(self, owner: Owner, body: bytes) -> Answer:
        return self.submit(owner, "save_weights", body, self._save)

    def save_weights_for_sampler(self, owner: Owner, body: bytes) -> Answer:
        return self.submit(owner, "save_weights_for_sampler", body, self._save_for_sampler)

    def save_weights_external(self, owner: Owner, body: bytes) -> Answer:
        return self.submit(owner, "save_weights_external", body, self._save_external)

    def reject(self, owner: Owner, operation: str, body: bytes, error: RequestError) -> Answer:
        """Reject an operation that this server does not have. A numbered request of a model is rejected in its turn.

        Raises:
            RequestError: `error`, if the body has no model or number.
        """

        async def fail(_: TrainedModel, __: Found) -> Answer:
            raise error

        try:
            return self.submit(owner, operation, body, fail)
        except RequestError:
            raise error from None

    def unload_model(self, owner: Owner, body: bytes) -> Answer:
        """Let go of a model before its session ends."""
        service, model_id = self._service, text_of(json_object(body), "model_id")
        request_id = f"{model_id}:unload"

        async def unload() -> Answer:
            await service.release_model(service.sessions.get(model_id, owner), model_id, "The model was unloaded.")
            return wire.unload_model_response(model_id)

        async def execute() -> None:
            service.futures.finish(request_id, await service.answer(unload(), "unload_model"))

        if not service.futures.knows(request_id, owner):
            service.sessions.model(model_id, owner)
            service.futures.open(request_id, owner)
            service.spawn(execute())
        return wire.future_response(request_id, model_id)

    def submit(self, owner: Owner, kind: str, body: bytes, operation: Operation) -> Answer:
        """Queue an operation whose body is JSON."""
        found = json_object(body)
        model = self._service.sessions.model(text_of(found, "model_id"), owner)
        number = number_of(found, "seq_id")

        async def execute() -> Answer:
            return await self._service.answer(operation(model, found), kind)

        return wire.future_response(model.turns.submit(number, kind, len(body), execute), model.model_id)

    def _new_model_id(self, owner: Owner, found: Found) -> str:
        session = self._service.sessions.get(text_of(found, "session_id"), owner)
        return f"{session.session_id}:train:{number_of(found, 'model_seq_id')}"

    def _metadata(self, found: Found) -> Found | None:
        return metadata_of(found, self._service.limits.max_metadata_bytes)

    def _is_known(self, owner: Owner, model_id: str) -> bool:
        """Creations are sent again too, even after their result was discarded: the model must live on then."""
        service = self._service
        return model_id in service.sessions.get(model_id, owner).models or service.futures.knows(f"{model_id}:0", owner)

    def _begin(self, model: TrainedModel, kind: str, create: Callable[[], Awaitable[Answer]]) -> Answer:
        """Turn 0. A model that could not be created is none."""
        session = self._service.sessions.get(model.model_id, model.owner)
        created = False

        async def create_and_note() -> Answer:
            nonlocal created
            answer = await create()
            created = True
            return answer

        async def execute() -> Answer:
            answer = await self._service.answer(create_and_note(), kind)
            if not created:
                session.models.pop(model.model_id, None)
                model.turns.close(f"Model {model.model_id} could not be created.")
            return answer

        return wire.future_response(model.turns.submit(0, kind, 0, execute), model.model_id)

    async def _step(self, model: TrainedModel, found: Found) -> Answer:
        step = wire.adam_step(found)
        run = self._service.host.optim_step
        return wire.optim_step_response(await self._service.in_worker(model.owner, run, model.model_id, step))

    async def _load_into(self, model: TrainedModel, found: Found) -> Answer:
        return await self._load(model, self._checkpoint(model.owner, found), found)

    async def _load(self, model: TrainedModel, checkpoint: Checkpoint, found: Found) -> Answer:
        directory, optimizer = self._service.checkpoints.directory(checkpoint.path), bool(found.get("optimizer"))
        load = partial(self._service.host.load_state, model.model_id, directory, optimizer=optimizer)
        await self._service.in_worker(model.owner, load)
        return wire.load_weights_response(str(checkpoint.path), model.model_id)

    async def _save(self, model: TrainedModel, found: Found) -> Answer:
        overwrite = bool(found.get("overwrite"))
        return wire.save_weights_response(await self._write(model, found, "weights", overwrite=overwrite))

    async def _save_for_sampler(self, model: TrainedModel, found: Found) -> Answer:
        if found.get("path") is not None:
            # The request has no overwrite flag, so a reused name refers to the latest weights.
            return wire.save_weights_for_sampler_response(
                path=await self._write(model, found, "sampler_weights", overwrite=True)
            )
        number = number_of(found, "sampling_session_seq_id")
        sampler_id = sampler_id_of(model.model_id.partition(":")[0], number)
        inflight = found.get("kind", "snapshot") == "inflight"
        key = inflight_key(model.model_id) if inflight else sampler_id
        weights = await self._service.in_worker(model.owner, self._service.host.weights, model.model_id)
        self._service.sessions.add_sampler(
            SamplingSession(sampler_id=sampler_id, owner=model.owner, base_model=model.base_model, snapshot=key)
        )
        self._service.snapshots.put(key, weights, owner=model.owner.name, on_disk=False)
        return wire.save_weights_for_sampler_response(sampler_id=sampler_id)

    async def _save_external(self, model: TrainedModel, found: Found) -> Answer:
        if found.get("age_encryption_recipients"):
            raise RequestError("age_encryption_recipients: this server does not encrypt. Remove them.")
        written = await self._write_checkpoint(model, found, EXTERNAL, overwrite=True)
        return wire.save_weights_external_response(str(written.path), written.size)

    async def _write(self, model: TrainedModel, found: Found, kind: Kind, *, overwrite: bool) -> str:
        return str((await self._write_checkpoint(model, found, kind, overwrite=overwrite)).path)

    async def _write_checkpoint(self, model: TrainedModel, found: Found, kind: Kind, *, overwrite: bool) -> Checkpoint:
        service = self._service
        path = TinkerPath(model.model_id, kind, text_of(found, "path"))
        checkpoint = Checkpoint(
            path=path,
            base_model=model.base_model,
            spec=model.spec,
            created=time.time(),
            expires=service.checkpoints.expiry(optional_number_of(found, "ttl_seconds")),
            user_metadata=self._metadata(found),
            owner=model.owner.name,
        )

        def save(directory: Path) -> None:
            service.host.save_state(model.model_id, directory, optimizer=kind == "weights")

        write = partial(service.checkpoints.write, checkpoint, save, overwrite=overwrite)
        return await service.in_worker(model.owner, write)

    def _checkpoint(self, owner: Owner, found: Found) -> Checkpoint:
        path = TinkerPath.parse(text_of(found, "path")).require_loadable()
        checkpoint = self._service.checkpoints.get(path, owner)
        if found.get("optimizer") and checkpoint.path.kind != "weights":
            raise RequestError(
                f"{checkpoint.path} has no optimizer state. Load a checkpoint of save_state, under …/weights/."
            )
        return checkpoint
