"""Clients' sessions with their models, samplers and snapshots, until they finish or fall silent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from rllm_tinker_server.limits import TinkerLimits
from rllm_tinker_server.messages import LoraSpec, RequestRefused
from rllm_tinker_server.refusals import Gone, NotFound
from rllm_tinker_server.turns import Turns


@dataclass(frozen=True, slots=True)
class _Held:
    weights: Any
    on_disk: bool


class Snapshots:
    """Sampler weights in memory. `weights` are opaque here. `forget` receives each set of weights that is dropped."""

    def __init__(self, max_held: int, forget: Callable[[Any], None]) -> None:
        self._max_held = max_held
        self._forget = forget
        # Least recently used first.
        self._held: dict[str, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: str) -> Any | None:
        """The weights, or None when they have left."""
        held = self._held.pop(key, None)
        if held is None:
            return None
        self._held[key] = held
        return held.weights

    def put(self, key: str, weights: Any, *, on_disk: bool) -> None:
        """Store weights, and replace weights with the same key.

        If the memory is full, weights that are also `on_disk` are dropped first, because they can be read again. A
        sampler is lost if its other weights are dropped.
        """
        self.drop(key)
        while len(self._held) >= self._max_held:
            readable = (key for key, held in self._held.items() if held.on_disk)
            self.drop(next(readable, next(iter(self._held))))
        self._held[key] = _Held(weights, on_disk)

    def drop(self, key: str) -> None:
        """Let go of weights, if they are held."""
        held = self._held.pop(key, None)
        if held is not None:
            self._forget(held.weights)


RESTARTED = "This server does not know it; if the server has restarted since, continue from the last checkpoint."


@dataclass(eq=False, kw_only=True)
class TrainedModel:
    """A LoRA model that is being trained."""

    model_id: str
    base_model: str
    """The name that its client called the base model by."""
    spec: LoraSpec
    turns: Turns
    user_metadata: Mapping[str, Any] | None = None
    last_request: float = field(default_factory=time.time)
    """Seconds since the epoch."""


@dataclass(frozen=True, kw_only=True)
class SamplingSession:
    """Weights of a sampling session."""

    sampler_id: str
    base_model: str
    model_path: str | None = None
    """Path of a checkpoint."""
    snapshot: str | None = None
    """Key of its weights in memory. None means the base model."""


@dataclass(eq=False, kw_only=True)
class Session:
    session_id: str
    last_seen: float
    """On the clock of `Sessions`."""
    user_metadata: Mapping[str, Any] | None = None
    display_name: str | None = None
    models: dict[str, TrainedModel] = field(default_factory=dict)
    samplers: dict[str, SamplingSession] = field(default_factory=dict)
    """Least recently used first."""


class Sessions:
    """All sessions, by id. Ids of models and samplers start with their session's id, so they find the session too."""

    def __init__(self, limits: TinkerLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._open: dict[str, Session] = {}
        self._ended: dict[str, str] = {}

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._open.values()))

    def create(self, user_metadata: Mapping[str, Any] | None, display_name: str | None) -> Session:
        """Raises RequestRefused when there are too many."""
        if self.full:
            raise RequestRefused(
                f"This server has {len(self._open)} sessions, as many as it takes. End programs that are done "
                f"(ServiceClient.close); silent ones are ended after {self._limits.session_idle:g} s."
            )
        session = Session(
            session_id=str(uuid4()),
            last_seen=self._clock(),
            user_metadata=user_metadata,
            display_name=display_name,
        )
        self._open[session.session_id] = session
        return session

    def touch(self, any_id: str) -> None:
        """Record that the client is alive. Ids without an open session are ignored."""
        session = self._open.get(any_id.partition(":")[0])
        if session is not None:
            session.last_seen = self._clock()

    def get(self, any_id: str) -> Session:
        """The session that an id belongs to.

        Raises:
            Gone: it has ended, or was never known.
        """
        session_id = any_id.partition(":")[0]
        session = self._open.get(session_id)
        if session is None:
            why = self._ended.get(session_id)
            raise Gone(f"Session {session_id!r} {why}" if why else f"No session {session_id!r}. {RESTARTED}")
        session.last_seen = self._clock()
        return session

    def model(self, model_id: str) -> TrainedModel:
        """Raises NotFound or Gone."""
        model = self.get(model_id).models.get(model_id)
        if model is None:
            raise NotFound(f"No model {model_id!r}: it could not be created, or was unloaded.")
        model.last_request = time.time()
        return model

    def sampler(self, sampler_id: str) -> SamplingSession:
        """Raises NotFound or Gone."""
        samplers = self.get(sampler_id).samplers
        sampler = samplers.pop(sampler_id, None)
        if sampler is None:
            raise NotFound(
                f"No sampling session {sampler_id!r}: create one first. Of each client's, the "
                f"{self._limits.max_samplers} used last are kept."
            )
        samplers[sampler_id] = sampler
        return sampler

    def add_sampler(self, sampler: SamplingSession) -> None:
        """Add a sampler. If the session has too many, drop the least recently used sampler. Raises Gone."""
        samplers = self.get(sampler.sampler_id).samplers
        samplers[sampler.sampler_id] = sampler
        while len(samplers) > self._limits.max_samplers:
            del samplers[next(iter(samplers))]

    @property
    def full(self) -> bool:
        """True if the server has its maximum number of sessions."""
        return len(self._open) >= self._limits.max_sessions

    @property
    def full_of_models(self) -> bool:
        """True if the server has its maximum number of models."""
        return sum(len(session.models) for session in self) >= self._limits.max_models

    def check_room(self) -> None:
        """Raise RequestRefused if the server has its maximum number of models."""
        if self.full_of_models:
            models = [model_id for session in self for model_id in session.models]
            raise RequestRefused(
                f"This server trains {self._limits.max_models} models at a time and has as many, such as {models[0]}. "
                "End programs that are done (ServiceClient.close), or start the server with a larger --max-models."
            )

    def idle(self) -> list[Session]:
        """Sessions that fell silent and have nothing in execution."""
        return self._silent_for(self._limits.session_idle)

    def without_heartbeat(self) -> list[Session]:
        """Sessions whose client sends no heartbeat any more, and that have nothing in execution; the oldest first."""
        return sorted(self._silent_for(self._limits.heartbeat_missed), key=lambda session: session.last_seen)

    def _silent_for(self, seconds: float) -> list[Session]:
        limit = self._clock() - seconds
        return [
            session
            for session in self
            if session.last_seen < limit and all(model.turns.idle for model in session.models.values())
        ]

    def end(self, session: Session, why: str) -> None:
        """Forget the session, but for the reason."""
        self._open.pop(session.session_id, None)
        self._ended[session.session_id] = why
        while len(self._ended) > self._limits.max_ended_sessions:
            del self._ended[next(iter(self._ended))]
