"""The gateway: its sessions, the attached policy, and its limits."""

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
from rllm_gateway.apis.exchange import ModelRequest, PendingResponse
from rllm_gateway.apis.fields import RefusedError, invalid
from rllm_gateway.calls import CallStore, DeliveryRow, EndRow, RewardRow, SessionRow, StoreError
from rllm_gateway.calls.store import RowLog
from rllm_gateway.sampling.rendering import encode_prompt
from rllm_gateway.sampling.sampling import begin
from rllm_gateway.sessions.link import (
    LABEL,
    TASK,
    TEMPERATURE,
    AttachedPolicy,
    OpenedSession,
    SessionSpec,
    SessionTrace,
)
from rllm_gateway.sessions.live_session import LiveSession, hash_of, is_key
from rllm_serving.listening import reachable_url


@dataclass(frozen=True, kw_only=True)
class GatewayLimits:
    """Limits of a gateway. A request above a limit is rejected, not queued."""

    body_bytes: int = 4 << 20
    """Maximum size of a request's body. The default is about a million tokens of text."""
    in_flight: int = 4096
    """Maximum number of concurrent requests."""
    in_flight_of_session: int = 256
    """Maximum number of concurrent requests in one session."""
    policy_seconds: float = 60.0
    """Seconds that a request waits if no policy is attached."""
    keep_alive_seconds: float = 10.0
    """Seconds between the keep-alive comments of a waiting stream. The first comment is sent with the headers."""
    closed_sessions: int = 10_000
    """Number of closed sessions that are remembered, so that late requests get a clear error."""


NOBODY = hash_of("")
IDS = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._~:-]{1,200}")


class SessionError(RllmError):
    """A session does not exist, or its id is not valid."""


class Gateway:
    """Sessions and the policy that answers their calls. All methods must be called on one event loop."""

    def __init__(self, store: CallStore | Path, url: str, limits: GatewayLimits | None = None) -> None:
        """Make a gateway without a policy.

        Args:
            store: store of calls. A call is stored before it is answered. A path is opened with the first session.
            url: URL of the gateway.
            limits: limits of the gateway. None: the defaults.
        """
        self.limits = limits or GatewayLimits()
        self._log = RowLog(store)
        self.in_flight = 0
        self.url = url
        self._sessions: dict[str, LiveSession] = {}
        self._closed: OrderedDict[str, str] = OrderedDict()
        """Session id -> hash of the session's key."""
        self._attached: AttachedPolicy | None = None
        self._is_attached = asyncio.Event()

    @property
    def open_sessions(self) -> int:
        return len(self._sessions)

    def attach(self, policy: AttachedPolicy) -> None:
        """Answer all later calls with this policy."""
        self._attached = policy
        self._is_attached.set()

    def detach(self) -> None:
        """Remove the policy. New calls wait for the next policy. Running calls fail, because the link is closed."""
        self._attached = None
        self._is_attached.clear()

    @property
    def is_attached(self) -> bool:
        return self._attached is not None

    async def wait_for_policy(self) -> AttachedPolicy:
        """Return the policy, and wait for it if none is attached.

        Raises:
            RefusedError: no policy was attached in time.
        """
        if self._attached is None:
            try:
                async with asyncio.timeout(self.limits.policy_seconds):
                    await self._is_attached.wait()
            except TimeoutError:
                raise RefusedError(
                    503,
                    "busy",
                    "No run is attached to the gateway. Send the request again when a run is training.",
                    code="no_policy",
                ) from None
        assert self._attached is not None
        return self._attached

    async def open_session(self, spec: SessionSpec) -> OpenedSession:
        """Open a session.

        Raises:
            SessionError: the id is in use, or cannot be part of a URL.
            StoreError: the session cannot be stored.
        """
        if spec.id in self._sessions or not IDS.fullmatch(spec.id):
            raise SessionError(
                "wrong-value",
                f"The session id {spec.id!r:.80} is in use, or cannot be part of a URL.",
                "Use an id that no open session has, made of letters, digits and the characters . _ ~ : -",
            )
        key = secrets.token_urlsafe(32)
        reward_key = secrets.token_urlsafe(32) if spec.reward_source == "agent" else ""
        session = LiveSession(spec, hash_of(key), hash_of(reward_key) if reward_key else None)
        self._sessions[spec.id] = session
        try:
            await self._log.add(_session_row(session))
        except BaseException:
            del self._sessions[spec.id]
            raise
        return OpenedSession(id=spec.id, key=key, url=f"{reachable_url(self.url)}/s/{spec.id}", reward_key=reward_key)

    async def close_session(self, session: str) -> SessionTrace:
        """Seal a session, wait for writes to the store, and return its calls and rewards.

        Raises:
            SessionError: the session does not exist.
        """
        live = self._sessions.get(session)
        if live is None or live.sealed:
            raise SessionError(
                "unknown-session",
                f"There is no open session {session!r:.80}.",
                "A session is open only while its rollout runs. This is a bug; please report it.",
            )
        live.sealed = True
        under_way = [each for answers in live.pending.values() for each in answers if not each.task.done()]
        for pending in under_way:
            if not pending.storing:
                pending.task.cancel()
        await asyncio.gather(*(pending.task for pending in under_way), return_exceptions=True)
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
        """Return the session `id_`, after a check of its key.

        Raises:
            RefusedError: 401 if the key or the id is wrong, 409 if the session is closed.
        """
        session = self._sessions.get(id_)
        key_hash = self._closed.get(id_, NOBODY) if session is None else session.key_hash
        if not key or not is_key(key, key_hash):
            raise RefusedError(
                401, "authentication", "The API key does not belong to this session.", code="invalid_api_key"
            )
        if session is None or session.sealed:
            raise RefusedError(409, "conflict", "The session is closed.", code="session_closed")
        if session.ending == "failed":
            raise RefusedError(500, "failed", "A call of this session could not be stored, so that the rollout fails.")
        return session

    async def begin(self, session: LiveSession, request: ModelRequest) -> PendingResponse:
        """Begin to answer a request.

        Raises:
            RefusedError: the request is rejected.
        """
        attached = await self.wait_for_policy()
        request = await encode_prompt(session, request, attached.renderer)
        if session.sealed:
            raise RefusedError(409, "conflict", "The session is closed.", code="session_closed")
        return begin(session, request, attached, self._log, self.limits.in_flight_of_session)

    def flush(self) -> None:
        """Pass waiting rows to the store."""
        self._log.flush()

    def close(self) -> None:
        """Wait until everything is stored, and close the store."""
        self._log.close()

    def note_delivery(self, session: LiveSession, pending: PendingResponse) -> None:
        """Record that the client has received the answer."""
        if pending.delivered:
            return
        pending.delivered = True
        for choice in pending.choices:
            session.delivered.add(choice.call)
            self._log.note(DeliveryRow(session=session.spec.id, call=choice.call, at=time.time()))

    async def add_reward(self, session: LiveSession, role: str, value: float) -> None:
        """Store a reward. If a role gets several rewards, the last reward applies.

        Raises:
            RefusedError: the reward is not finite, or cannot be stored.
        """
        if not math.isfinite(value):
            raise invalid("reward is not a finite number.", "reward")
        try:
            await self._log.add(RewardRow(session=session.spec.id, role=role, value=value, at=time.time()))
        except StoreError as error:
            session.ending = "failed"
            raise RefusedError(500, "failed", f"The reward could not be stored: {error}") from error
        session.rewards[role] = value


def _session_row(session: LiveSession) -> SessionRow:
    spec = session.spec
    return SessionRow(
        id=spec.id,
        run=spec.run,
        rollout=spec.rollout,
        retry=spec.retry,
        metadata={TASK: spec.metadata, LABEL: spec.label, TEMPERATURE: spec.temperature},
        key_hash=session.key_hash,
        opened=time.time(),
    )
