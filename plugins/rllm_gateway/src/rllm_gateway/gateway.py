"""The gateway: its sessions, the policy that is attached, and how much it takes on."""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from rllm_core.errors import RllmError
from rllm_gateway.calls import CallStore, DeliveryRow, EndRow, RewardRow, SessionRow, StoreError
from rllm_gateway.exchange import Asked
from rllm_gateway.link_policy import AttachedPolicy
from rllm_gateway.live_session import LiveSession, hash_of, is_key
from rllm_gateway.refusals import RefusedError, invalid
from rllm_gateway.row_log import RowLog
from rllm_gateway.sampling import begin
from rllm_gateway.session import (
    BATCH,
    LABEL,
    TASK,
    TASK_ID,
    TEMPERATURE,
    TOKENIZER,
    OpenedSession,
    SessionSpec,
    SessionTrace,
)
from rllm_gateway.work import Work
from rllm_serving.listening import reachable


@dataclass(frozen=True, kw_only=True)
class GatewayLimits:
    """What is above is refused, never held."""

    body_bytes: int = 4 << 20
    """Of one request: a million tokens of text."""
    path_bytes: int = 1024
    """Of a request's path."""
    in_flight: int = 4096
    """Requests at a time."""
    in_flight_of_session: int = 256
    """Requests at a time of one session."""
    role_length: int = 64
    """Characters of a role's name."""
    policy_seconds: float = 60.0
    """How long a request waits for a policy where none is attached."""
    keep_alive_seconds: float = 10.0
    """How often a stream that waits is given a sign of life; the first comes with the headers."""
    open_sessions: int = 10_000
    """Sessions at a time that clients have opened."""
    closed_sessions: int = 10_000
    """How many closed sessions are remembered, so that late requests are told so."""


NOBODY = hash_of("")
IDS = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._~:-]{1,200}")


class SessionError(RllmError):
    """There is no such session, or its name cannot be used."""


class Gateway:
    """Lives on one event loop."""

    def __init__(self, store: CallStore | Path, url: str, limits: GatewayLimits | None = None) -> None:
        """No policy is attached yet.

        Args:
            store: where calls are stored before they are answered; a path is opened with the first session.
            url: where the gateway listens.
            limits: how much it takes on.
        """
        self.limits = limits or GatewayLimits()
        self._log = RowLog(store)
        self.in_flight = 0
        self.url = url
        self._sessions: dict[str, LiveSession] = {}
        self._closed: OrderedDict[str, str] = OrderedDict()
        """Hashes of their keys, by id."""
        self._attached: AttachedPolicy | None = None
        self._is_attached = asyncio.Event()

    @property
    def open_sessions(self) -> int:
        return len(self._sessions)

    @property
    def session_ids(self) -> list[str]:
        """Of those that are open."""
        return list(self._sessions)

    def attach(self, policy: AttachedPolicy) -> None:
        """Answer calls by this policy from here on."""
        self._attached = policy
        self._is_attached.set()

    def detach(self) -> None:
        """Calls wait for another policy; those under way fail by themselves."""
        self._attached = None
        self._is_attached.clear()

    @property
    def is_attached(self) -> bool:
        return self._attached is not None

    async def attached(self) -> AttachedPolicy:
        """The policy, as soon as there is one. Raises RefusedError when none comes in time."""
        if self._attached is None:
            try:
                async with asyncio.timeout(self.limits.policy_seconds):
                    await self._is_attached.wait()
            except TimeoutError:
                raise RefusedError(
                    503,
                    "busy",
                    "No run is attached to the gateway. Send the request again when one trains.",
                    code="no_policy",
                ) from None
        assert self._attached is not None
        return self._attached

    async def open_session(self, spec: SessionSpec) -> OpenedSession:
        """Open a session.

        Raises:
            SessionError: the id is in use, or cannot be part of a URL.
            StoreError: it cannot be stored.
        """
        if spec.id in self._sessions or not IDS.fullmatch(spec.id):
            raise SessionError(
                "wrong-value",
                f"The session id {spec.id!r:.80} is in use, or cannot be part of a URL.",
                "Choose another id.",
            )
        key = secrets.token_urlsafe(32)
        session = LiveSession(spec, hash_of(key))
        self._sessions[spec.id] = session
        tokenizer = None if self._attached is None else self._attached.tokenizer
        try:
            await self._log.add(_session_row(session, tokenizer))
        except BaseException:
            del self._sessions[spec.id]
            raise
        return OpenedSession(id=spec.id, key=key, url=f"{reachable(self.url)}/s/{spec.id}")

    async def close_session(self, session: str) -> SessionTrace:
        """Seal a session, let what is being stored end, and return what it holds.

        Raises:
            SessionError: there is no such session.
        """
        live = self._sessions.get(session)
        if live is None or live.sealed:
            raise SessionError(
                "unknown-session",
                f"There is no open session {session!r:.80}.",
                "A session is open while its attempt runs.",
            )
        live.sealed = True
        under_way = [work for works in live.works.values() for work in works if not work.task.done()]
        for work in under_way:
            if not work.storing:
                work.task.cancel()
        await asyncio.gather(*(work.task for work in under_way), return_exceptions=True)
        try:
            await self._log.add(EndRow(session=session, ending=live.ending, at=time.time()))
        except StoreError:
            live.ending = "failed"
        del self._sessions[session]
        self._closed[session] = live.key_hash
        while len(self._closed) > self.limits.closed_sessions:
            self._closed.popitem(last=False)
        return live.trace()

    def session(self, id_: str, key: str) -> LiveSession:
        """The session that a key opens. Raises RefusedError: 401 for a wrong key or id, 409 once it is closed."""
        session = self._sessions.get(id_)
        key_hash = self._closed.get(id_, NOBODY) if session is None else session.key_hash
        if not key or not is_key(key, key_hash):
            raise RefusedError(
                401, "authentication", "The API key is not that of this session.", code="invalid_api_key"
            )
        if session is None or session.sealed:
            raise RefusedError(409, "conflict", "The session is closed.", code="session_closed")
        if session.ending == "failed":
            raise RefusedError(500, "failed", "A call of this session could not be stored, so that the attempt fails.")
        return session

    async def begin(self, session: LiveSession, asked: Asked) -> Work:
        """Begin to answer a request. Raises RefusedError."""
        attached = await self.attached()
        if session.sealed:
            raise RefusedError(409, "conflict", "The session is closed.", code="session_closed")
        return begin(session, asked, attached, self._log, self.limits.in_flight_of_session)

    def flush(self) -> None:
        """Hand what waits to the store."""
        self._log.flush()

    def close(self) -> None:
        """Wait until everything is stored, and let go of the store."""
        self._log.close()

    def note_delivery(self, session: LiveSession, work: Work) -> None:
        """The client has the answer."""
        answer = work.answer
        if work.delivered or answer is None:
            return
        work.delivered = True
        for choice in answer.choices:
            session.delivered.add(choice.call)
            self._log.note(DeliveryRow(session=session.spec.id, call=choice.call, at=time.time()))

    async def add_reward(self, session: LiveSession, role: str, value: float) -> None:
        """Note a reward; the last one of a role counts. Raises RefusedError."""
        if not math.isfinite(value):
            raise invalid("reward is not a finite number.", "reward")
        try:
            await self._log.add(RewardRow(session=session.spec.id, role=role, value=value, at=time.time()))
        except StoreError as error:
            session.ending = "failed"
            raise RefusedError(500, "failed", f"The reward could not be stored: {error}") from error
        session.rewards[role] = value


def _session_row(session: LiveSession, tokenizer: str | None) -> SessionRow:
    spec = session.spec
    sampler = {TEMPERATURE: spec.temperature, TOKENIZER: tokenizer}
    return SessionRow(
        id=spec.id,
        run=spec.run,
        rollout=spec.rollout,
        retry=spec.retry,
        metadata={TASK: spec.metadata, TASK_ID: spec.task_id, LABEL: spec.label, BATCH: spec.task_batch, **sampler},
        key_hash=session.key_hash,
        opened=time.time(),
    )
