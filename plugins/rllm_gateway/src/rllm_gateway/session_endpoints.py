"""Requests by which deployed agents open and end sessions."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from rllm_gateway.apis.openai_errors import error_body
from rllm_gateway.deployment import DeployedSessions
from rllm_gateway.fields import json_object, mapping, optional_text
from rllm_gateway.http import ClientGoneError, key_of, read_body, send_error, send_json
from rllm_gateway.refusals import RefusedError

Respond = Callable[[Scope, Receive], Awaitable[Any]]
"""To the JSON that is answered."""
HOST = re.compile(rb"[A-Za-z0-9._~:\[\]-]+")


def open_endpoint(sessions: DeployedSessions) -> ASGIApp:
    """``POST /sessions`` with the admin token, and ``{"task": {…}, "task_id": "…"}``; both may be left out."""

    async def respond(scope: Scope, receive: Receive) -> Any:
        body = json_object(await read_body(receive) or b"{}")
        headers = dict(scope["headers"])
        opened = await sessions.open(key_of(headers), mapping(body, "task"), optional_text(body, "task_id"))
        # It may listen on all addresses, and the client knows one of them.
        host = headers.get(b"host", b"")
        if HOST.fullmatch(host):
            opened = replace(opened, url=f"http://{host.decode()}/s/{opened.id}")
        urls = {"openai_url": opened.openai_url(), "anthropic_url": opened.anthropic_url()}
        return {"id": opened.id, "key": opened.key, "url": opened.url, **urls}

    return answering("POST", respond)


def end_endpoint(sessions: DeployedSessions) -> ASGIApp:
    """``DELETE /s/ID`` with the key of the session."""

    async def respond(scope: Scope, receive: Receive) -> Any:
        session = scope["path_params"]["session"]
        await sessions.end(session, key_of(dict(scope["headers"])))
        return {"id": session, "ending": "closed"}

    return answering("DELETE", respond)


def answering(method: str, respond: Respond) -> ASGIApp:
    """Answers requests of this method with JSON."""

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
            await send_json(send, body)

    return _App(app)


class _App:
    """Starlette takes a plain function for one of its own endpoints."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
