"""Shared state of all operations: the model, its training thread, and the clients' sessions and models."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rllm_core.errors import RllmError
from rllm_tinker_server import wire
from rllm_tinker_server.checkpoints import Checkpoints
from rllm_tinker_server.fairness import FairGate, SharedLimit
from rllm_tinker_server.limits import TinkerLimits
from rllm_tinker_server.messages import (
    LoraSpec,
    RequestError,
)
from rllm_tinker_server.owners import NOBODY, Owner
from rllm_tinker_server.request_errors import NotFoundError, ServerError
from rllm_tinker_server.sessions import Session, Sessions, TrainedModel
from rllm_tinker_server.turns import Answer, Futures, Turns

if TYPE_CHECKING:
    from rllm_tinker_server.host import Host
    from rllm_tinker_server.samplers import Samplers


@dataclass(frozen=True, slots=True)
class _Snapshot:
    owner: str
    weights: Any
    on_disk: bool


class Snapshots:
    """Sampler weights in memory. `weights` are opaque here. `forget` receives each set of weights that is dropped."""

    def __init__(self, max_held: int, forget: Callable[[Any], None]) -> None:
        self._max_held = max_held
        self._forget = forget
        # Least recently used first.
        self._held: dict[str, _Snapshot] = {}

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: str) -> Any | None:
        """The weights, or None when they have left."""
        held = self._held.pop(key, None)
        if held is None:
            return None
        self._held[key] = held
        return held.weights

    def put(self, key: str, weights: Any, *, owner: str, on_disk: bool) -> None:
        """Store weights, and replace weights with the same key.

        If the memory is full, the owner with the most sets loses one, so no owner loses weights to an owner with more.
        Weights that are also `on_disk` are dropped first, because they can be read again. A sampler is lost if its
        other weights are dropped.

        Raises:
            RequestError: the memory is full, and no other owner has more than one set.
        """
        self.drop(key)
        while len(self._held) >= self._max_held:
            self._drop_one(owner)
        self._held[key] = _Snapshot(owner, weights, on_disk)

    def drop(self, key: str) -> None:
        """Drop weights if they are in memory."""
        held = self._held.pop(key, None)
        if held is not None:
            self._forget(held.weights)

    def _drop_one(self, newcomer: str) -> None:
        counts = Counter(held.owner for held in self._held.values())
        counts[newcomer] += 1
        loser = max(counts, key=lambda owner: (counts[owner], owner == newcomer))
        keys = [key for key, held in self._held.items() if held.owner == loser]
        if not keys:
            raise RequestError(
                f"This server keeps {self._max_held} sets of weights for sampling, and each belongs to a different "
                "key. Try again later, or start the server with a larger --max-snapshots."
            )
        self.drop(next((key for key in keys if self._held[key].on_disk), keys[0]))


T = TypeVar("T")

logger = logging.getLogger("rllm_tinker_server")


class Service:
    """To be used from one event loop. `names` are what clients may call the base model."""

    def __init__(
        self,
        host: Host,
        samplers: Samplers,
        executor: Executor,
        checkpoints: Path,
        *,
        names: Sequence[str],
        limits: TinkerLimits,
    ) -> None:
        self.host = host
        self.samplers = samplers
        self.names = tuple(names)
        self.limits = limits
        self.futures = Futures(limits)
        self.sessions = Sessions(limits)
        self.snapshots = Snapshots(limits.max_snapshots, samplers.forget)
        self.checkpoints = Checkpoints(checkpoints)
        self._executor = executor
        self._turn_to_train = FairGate(1)
        self._backlog = SharedLimit(limits.max_waiting_bytes)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def in_worker(self, owner: Owner, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function on the thread that trains, after everything that the owner handed in before.

        Owners alternate, so none waits for a queue of others.
        """
        async with self._turn_to_train.enter(owner.name):
            return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine concurrently. It must not raise."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def answer(self, work: Awaitable[Answer], what: str) -> Answer:
        """Whatever goes wrong in the work is an answer too."""
        try:
            return await work
        except RequestError as error:
            return wire.user_error(str(error))
        except (ServerError, RllmError) as error:
            return wire.server_error(str(error))
        except Exception as error:
            # Report the error to this client. The other clients' requests continue.
            logger.exception("%s failed", what)
            return wire.server_error(f"{what} failed on the server: {type(error).__name__}: {error}")

    def check_name(self, name: str) -> None:
        """Raise NotFoundError unless clients may call the base model so."""
        if name not in self.names:
            known = ", ".join(map(repr, self.names))
            raise NotFoundError(
                f"There is no model {name!r}. This server has {known}. Request that name, or start a server with "
                f"`--model {name}` (or with `--name {name}` next to a different --model, to give it that name)."
            )

    def open_session(self, owner: Owner, metadata: Mapping[str, Any] | None, display_name: str | None) -> Session:
        """Raises RequestError when there are too many."""
        if not self.sessions.has_room(owner):
            # The owner's own sessions go first.
            self._evict(iter(sorted(self.sessions.without_heartbeat(), key=lambda silent: silent.owner != owner)))
        return self.sessions.create(owner, metadata, display_name)

    def add_model(
        self, model_id: str, owner: Owner, base_model: str, spec: LoraSpec, metadata: Mapping[str, Any] | None
    ) -> TrainedModel:
        """Raises RequestError when there are too many."""
        session = self.sessions.get(model_id, owner)
        while self.sessions.is_full_of_models:
            if not self._evict(silent for silent in self.sessions.without_heartbeat() if silent.models):
                break
        self.sessions.check_room(owner)
        turns = Turns(model_id, owner, self.futures, self._backlog, self.limits, wire.user_error)
        model = TrainedModel(
            model_id=model_id, owner=owner, base_model=base_model, spec=spec, turns=turns, user_metadata=metadata
        )
        session.models[model_id] = model
        return model

    async def release_model(self, session: Session, model_id: str, why: str) -> None:
        """Let go of a model and what is held of it in memory; its checkpoints stay."""
        model = session.models.pop(model_id, None)
        if model is not None:
            model.turns.close(why)
            self.snapshots.drop(inflight_key(model_id))
            await self.in_worker(session.owner, self.host.release, model_id)

    async def end_session(self, session: Session, why: str) -> None:
        """Release all that belongs to the session; clients are told why when they ask for it later."""
        self.sessions.end(session, why)
        for sampler in session.samplers.values():
            if sampler.model_path is None and sampler.snapshot is not None:
                self.snapshots.drop(sampler.snapshot)
        for model_id in tuple(session.models):
            await self.release_model(session, model_id, f"Session {session.session_id!r} {why}")

    def _evict(self, silent: Iterator[Session]) -> bool:
        """End the first of some sessions. Its resources are released before any later request runs.

        Returns:
            True if a session ended.
        """
        session = next(silent, None)
        if session is None:
            return False
        why = (
            f"sent no heartbeat for {self.limits.heartbeat_missed:g} s and gave way to others, who needed room. "
            "Continue from the last checkpoint with a new client."
        )
        self.sessions.end(session, why)
        self.spawn(self.end_session(session, why))
        return True

    async def run_maintenance(self) -> None:
        """Discard what is too old, again and again."""
        loop = asyncio.get_running_loop()
        checkpoints_at = loop.time()
        while True:
            await asyncio.sleep(self.limits.sweep_interval)
            try:
                self.futures.sweep()
                await self._end_idle_sessions()
                if loop.time() >= checkpoints_at:
                    checkpoints_at = loop.time() + self.limits.checkpoint_sweep_interval
                    await self.in_worker(NOBODY, self.checkpoints.delete_expired_checkpoints)
            except Exception:
                # No task awaits this one, so log the error. The loop must continue, or memory would fill up.
                logger.exception("Discarding what is too old failed; it is tried again")

    async def _end_idle_sessions(self) -> None:
        for session in self.sessions.idle():
            await self.end_session(
                session,
                f"was ended after {self.limits.session_idle:g} s without a sign of its client, and its models "
                "were released. Continue from the last checkpoint with a new client.",
            )

    async def close(self) -> None:
        """Stop the background tasks. Work in the worker threads ends by itself."""
        self.futures.close()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def inflight_key(model_id: str) -> str:
    """Key of the weights that all in-flight samplers of a model share."""
    return f"{model_id}:inflight"
