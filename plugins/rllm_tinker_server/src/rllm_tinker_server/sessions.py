"""Clients' sessions with their models and samplers, until they finish or fall silent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from rllm_tinker_server.fairness import has_share
from rllm_tinker_server.limits import TinkerLimits
from rllm_tinker_server.messages import LoraSpec, RequestError
from rllm_tinker_server.owners import Owner
from rllm_tinker_server.request_errors import GoneError, NotFoundError
from rllm_tinker_server.turns import Turns

RESTARTED = "This server does not know it; if the server has restarted since, continue from the last checkpoint."


@dataclass(eq=False, kw_only=True)
class TrainedModel:
    """A LoRA model that is being trained."""

    model_id: str
    owner: Owner
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
    owner: Owner
    base_model: str
    model_path: str | None = None
    """Path of a checkpoint."""
    snapshot: str | None = None
    """Key of its weights in memory. None means the base model."""


@dataclass(eq=False, kw_only=True)
class Session:
    session_id: str
    owner: Owner
    last_seen: float
    """On the clock of `Sessions`."""
    user_metadata: Mapping[str, Any] | None = None
    display_name: str | None = None
    models: dict[str, TrainedModel] = field(default_factory=dict)
    samplers: dict[str, SamplingSession] = field(default_factory=dict)
    """Least recently used first."""


class Sessions:
    """All sessions, by id. Ids of models and samplers start with their session's id, so they find the session too.

    Owners find only their own sessions. An id of a different owner gives the same error as an unknown id.
    """

    def __init__(self, limits: TinkerLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._open: dict[str, Session] = {}
        self._ended: dict[tuple[str, Owner], str] = {}

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._open.values()))

    def list_of(self, owner: Owner) -> list[Session]:
        """Return the owner's open sessions."""
        return [session for session in self if session.owner == owner]

    def create(self, owner: Owner, user_metadata: Mapping[str, Any] | None, display_name: str | None) -> Session:
        """Raises RequestError when there are too many."""
        if not self.has_room(owner):
            raise RequestError(
                f"Too many sessions are open: this key has {len(self.list_of(owner))}. End programs that are done "
                f"(ServiceClient.close). Silent ones are ended after {self._limits.session_idle:g} s."
            )
        session = Session(
            session_id=str(uuid4()),
            owner=owner,
            last_seen=self._clock(),
            user_metadata=user_metadata,
            display_name=display_name,
        )
        self._open[session.session_id] = session
        return session

    def touch(self, any_id: str, owner: Owner) -> None:
        """Record that the client is alive. Ids without an open session are ignored."""
        session = self._find(any_id, owner)
        if session is not None:
            session.last_seen = self._clock()

    def get(self, any_id: str, owner: Owner) -> Session:
        """The session that an id belongs to.

        Raises:
            GoneError: it has ended, or was never known.
        """
        session_id = any_id.partition(":")[0]
        session = self._find(any_id, owner)
        if session is None:
            why = self._ended.get((session_id, owner))
            raise GoneError(f"Session {session_id!r} {why}" if why else f"No session {session_id!r}. {RESTARTED}")
        session.last_seen = self._clock()
        return session

    def model(self, model_id: str, owner: Owner) -> TrainedModel:
        """Raises NotFoundError or GoneError."""
        model = self.get(model_id, owner).models.get(model_id)
        if model is None:
            raise NotFoundError(f"No model {model_id!r}: it could not be created, or was unloaded.")
        model.last_request = time.time()
        return model

    def sampler(self, sampler_id: str, owner: Owner) -> SamplingSession:
        """Raises NotFoundError or GoneError."""
        samplers = self.get(sampler_id, owner).samplers
        sampler = samplers.pop(sampler_id, None)
        if sampler is None:
            raise NotFoundError(
                f"No sampling session {sampler_id!r}: create one first. Of each client's, the "
                f"{self._limits.max_samplers} used last are kept."
            )
        samplers[sampler_id] = sampler
        return sampler

    def add_sampler(self, sampler: SamplingSession) -> None:
        """Add a sampler. If the session has too many, drop the least recently used sampler. Raises GoneError."""
        samplers = self.get(sampler.sampler_id, sampler.owner).samplers
        samplers[sampler.sampler_id] = sampler
        while len(samplers) > self._limits.max_samplers:
            del samplers[next(iter(samplers))]

    def has_room(self, owner: Owner) -> bool:
        """True if the owner may open a session more, see `has_share`."""
        return has_share(self._limits.max_sessions, len(self._open), len(self.list_of(owner)), 1)

    @property
    def is_full_of_models(self) -> bool:
        """True if the server has its maximum number of models."""
        return sum(len(session.models) for session in self) >= self._limits.max_models

    def check_room(self, owner: Owner) -> None:
        """Raise RequestError if the server or the owner has the maximum number of models."""
        own = [model_id for session in self.list_of(owner) for model_id in session.models]
        limits = self._limits
        if limits.max_models_per_key is not None and len(own) >= limits.max_models_per_key:
            raise RequestError(
                f"This server trains at most {limits.max_models_per_key} models of one key at a time, and this key has "
                f"{len(own)}, such as {own[0]}. End programs that are done (ServiceClient.close)."
            )
        if self.is_full_of_models:
            raise RequestError(
                f"This server trains at most {limits.max_models} models at a time. It has no place left, and this key "
                f"has {len(own)} models. End programs that are done (ServiceClient.close), or start the server with a "
                "larger --max-models."
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

    def _find(self, any_id: str, owner: Owner) -> Session | None:
        session = self._open.get(any_id.partition(":")[0])
        return session if session is not None and session.owner == owner else None

    def end(self, session: Session, why: str) -> None:
        """Forget the session, but for the reason."""
        self._open.pop(session.session_id, None)
        self._ended[session.session_id, session.owner] = why
        while len(self._ended) > self._limits.max_ended_sessions:
            del self._ended[next(iter(self._ended))]
