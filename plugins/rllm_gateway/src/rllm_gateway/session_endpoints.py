"""Requests by which deployed agents open and end sessions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from rllm_gateway.apis.openai_errors import error_body
from rllm_gateway.deployment import DeployedSessions
from rllm_gateway.fields import json_object, mapping, optional_text
from rllm_gateway.http import JSON, ClientGoneError, key_of, read_body, send_error
from rllm_gateway.refusals import RefusedError

Respond = Callable[[Scope, Receive], Awaitable[Any]]
"""To the JSON that is answered."""


def open_endpoint(sessions: DeployedSessions) -> ASGIApp:
    """``POST /sessions`` with the admin token, and ``{"task": {…}, "task_id": "…"}``; both may be left out."""

    async def respond(scope: Scope, receive: Receive) -> Any:
        body = json_object(await read_body(receive) or b"{}")
        token = key_of(dict(scope["headers"]))
        opened = await sessions.open(token, mapping(body, "task"), optional_text(body, "task_id"))
        urls = {"openai_url": opened.openai_url(), "anthropic_url": opened.anthropic_url()}
        return {"id": opened.id, "key": opened.key, "url": opened.url, **urls}

    return _answering("POST", respond)


def end_endpoint(sessions: DeployedSessions) -> ASGIApp:
    """``DELETE /s/ID`` with the key of the session."""

    async def respond(scope: Scope, receive: Receive) -> Any:
        session = scope["path_params"]["session"]
        await sessions.end(session, key_of(dict(scope["headers"])))
        return {"id": session, "ending": "closed"}

    return _answering("DELETE", respond)


def _answering(method: str, respond: Respond) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["method"] != method:
                raise RefusedError(405, "invalid", f"Requests of this path are sent with {method}.")
            body = orjson.dumps(await respond(scope, receive))
        except RefusedError as refused:
            await send_error(send, refused, error_body(refused))
        except ClientGoneError:
            return
        else:
            headers = [JSON, (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    return _App(app)


class _App:
    """Starlette takes a plain function for one of its own endpoints."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
