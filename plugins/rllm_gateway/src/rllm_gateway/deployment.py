"""A gateway that serves a model to deployed agents. Agents open their sessions with a request, without a run."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rllm_gateway.attaching import is_token
from rllm_gateway.calls import StoreError
from rllm_gateway.fields import RefusedError
from rllm_gateway.gateway import Gateway, SessionError
from rllm_gateway.link import OpenedSession, SessionSpec

SLUG = 100
"""Maximum number of characters of the task id in a session id."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Settings for sessions that the gateway opens itself.

    It must not contain secrets, because it is passed to a process on its command line.
    """

    token_file: str
    """File with the admin token."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every `SessionSpec`, except ``id``, ``rollout``, ``metadata`` and ``task_id``."""


class DeployedSessions:
    """Sessions that agents open with the admin token and end with the session's key."""

    def __init__(self, gateway: Gateway, token: str, spec: Mapping[str, Any], tell: Callable[[str], None]) -> None:
        """`tell` is called with the id of every session that has ended, to inform the sampling process."""
        self._gateway = gateway
        self._token = token
        self._spec = spec
        self._tell = tell

    async def open(self, token: str, task: Mapping[str, Any], task_id: str) -> OpenedSession:
        """Open a session.

        Args:
            token: the admin token.
            task: data of the session's task, as JSON data.
            task_id: name of the task. If it is empty, sessions with equal `task` are rollouts of the same task.

        Raises:
            RefusedError: the token is wrong, too many sessions are open, or the session cannot be stored.
        """
        if not is_token(token, self._token):
            raise RefusedError(401, "authentication", "The API key is not the admin token.", code="invalid_api_key")
        if self._gateway.open_sessions >= self._gateway.limits.open_sessions:
            raise RefusedError(429, "busy", "The gateway has the maximum number of open sessions. End some.")
        slug = re.sub(r"[^A-Za-z0-9._~-]", "-", task_id)[:SLUG] or "session"
        rollout = f"{task_id}:0" if task_id else ""
        id_ = f"{slug}~{secrets.token_hex(6)}"
        spec = SessionSpec(id=id_, rollout=rollout, metadata=task, task_id=task_id, **self._spec)
        try:
            return await self._gateway.open_session(spec)
        except StoreError as error:
            raise RefusedError(500, "failed", f"The session could not be stored: {error.message}") from error

    async def end(self, session: str, key: str) -> None:
        """End a session. Later calls in it are answered with an error.

        Raises:
            RefusedError: the key is wrong.
        """
        self._gateway.session(session, key)
        await self._end(session)

    async def end_all(self) -> None:
        """End all sessions when the gateway stops. The next gateway does not accept their keys."""
        for session in self._gateway.session_ids:
            await self._end(session)

    async def _end(self, session: str) -> None:
        try:
            await self._gateway.close_session(session)
        except SessionError:
            raise RefusedError(409, "conflict", "The session is closed.", code="session_closed") from None
        finally:
            self._tell(session)
