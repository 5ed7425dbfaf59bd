"""A gateway that serves a model to deployed agents: their sessions are opened by a request, and by no run."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rllm_gateway.admin_token import is_token
from rllm_gateway.calls import StoreError
from rllm_gateway.gateway import Gateway, SessionError
from rllm_gateway.refusals import RefusedError
from rllm_gateway.session import OpenedSession, SessionSpec

SLUG = 100
"""Longest part of a session's id that its task gives."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """How a gateway opens sessions itself. No secrets: it is handed to a process on its command line."""

    token_file: str
    """File of the admin token."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every `SessionSpec` but ``id``, ``rollout``, ``metadata`` and ``task_id``."""


class DeployedSessions:
    """Sessions that are opened with the admin token, and ended with their own key."""

    def __init__(self, gateway: Gateway, token: str, spec: Mapping[str, Any], tell: Callable[[str], None]) -> None:
        """`tell`: what samples is told of every session that has ended."""
        self._gateway = gateway
        self._token = token
        self._spec = spec
        self._tell = tell

    async def open(self, token: str, task: Mapping[str, Any], task_id: str) -> OpenedSession:
        """Open a session.

        Args:
            token: the admin token.
            task: what the session is about, JSON data.
            task_id: name of the task; empty: sessions with equal data are attempts at one task.

        Raises:
            RefusedError: the token is another, there are too many sessions, or it cannot be stored.
        """
        if not is_token(token, self._token):
            raise RefusedError(401, "authentication", "The key is not the admin token.", code="invalid_api_key")
        if self._gateway.open_sessions >= self._gateway.limits.open_sessions:
            raise RefusedError(429, "busy", "The gateway has as many open sessions as it takes. End some.")
        slug = re.sub(r"[^A-Za-z0-9._~-]", "-", task_id)[:SLUG] or "session"
        rollout = f"{task_id}:0" if task_id else ""
        id_ = f"{slug}~{secrets.token_hex(6)}"
        spec = SessionSpec(id=id_, rollout=rollout, metadata=task, task_id=task_id, **self._spec)
        try:
            return await self._gateway.open_session(spec)
        except StoreError as error:
            raise RefusedError(500, "failed", f"The session could not be stored: {error.message}") from error

    async def end(self, session: str, key: str) -> None:
        """End a session: its calls are refused from here on. Raises RefusedError: the key is another."""
        self._gateway.session(session, key)
        await self._end(session)

    async def end_all(self) -> None:
        """The gateway stops: keys mean nothing to the next one."""
        for session in self._gateway.session_ids:
            await self._end(session)

    async def _end(self, session: str) -> None:
        try:
            await self._gateway.close_session(session)
        except SessionError:
            raise RefusedError(409, "conflict", "The session is closed.", code="session_closed") from None
        finally:
            self._tell(session)
