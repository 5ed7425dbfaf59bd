"""Middleware of servers: limits of request bodies, and checks of API keys and host names."""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rllm_core.errors import ConfigError
from rllm_serving.listening import is_loopback

DRAINED = 8
"""Multiple of the limit that is read and discarded before the connection is closed. A client that can finish sending
gets the error message. Other clients only see a closed connection, and retry for minutes."""


class LimitBody:
    """Middleware that rejects bodies above `max_bytes` (413) and compressed bodies (415), with an HTTPException."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        encoding = next((value for name, value in scope["headers"] if name == b"content-encoding"), b"identity")
        taken = 0

        async def receive_within_limit() -> Message:
            nonlocal taken
            message = await receive()
            if message["type"] == "http.request":
                if encoding != b"identity":
                    await self._drain(message, receive)
                    raise HTTPException(415, f"Bodies in {encoding.decode('latin-1')!r} are not read; send plain ones.")
                taken += len(message.get("body", b""))
                if taken > self._max_bytes:
                    await self._drain(message, receive)
                    raise HTTPException(413, f"The body is larger than {self._max_bytes} bytes; send it in parts.")
            return message

        await self._app(scope, receive_within_limit, send)

    async def _drain(self, message: Message, receive: Receive) -> None:
        left = DRAINED * self._max_bytes
        while message.get("more_body") and left > 0:
            message = await receive()
            left -= len(message.get("body", b""))


_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]+))(?::[0-9]+)?")


@dataclass(frozen=True, kw_only=True)
class KeyRule:
    """The keys of a server, and the header that contains one."""

    keys: tuple[str, ...]
    """The accepted keys. Empty: the server accepts any key."""
    header: str
    """Name of the header, such as ``X-API-Key``."""
    variable: str
    """Environment variable from which clients and the server read the key."""
    example: str
    """Example of a key, for messages."""
    open_paths: tuple[str, ...] = ()
    """Prefixes of paths that need no key."""


ACCEPTED = "rllm.key"
"""Entry of a request's scope with the accepted key, as bytes. Requests of open paths have none."""


class RequireKey:
    """Middleware that answers 401 to requests without a key of the server.

    If the server has no key, requests must still contain some key. Clients always send one, but a web page that makes
    a browser on this machine send requests cannot.
    """

    def __init__(self, app: ASGIApp, rule: KeyRule) -> None:
        self._app = app
        self._rule = rule
        self._header = rule.header.lower().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rule = self._rule
        if scope["type"] == "http" and not scope["path"].startswith(rule.open_paths):
            given = _header(scope, self._header)
            if given is None and not rule.keys:
                why = (
                    f"There is no {rule.header}. This server accepts any key; clients need one such as {rule.example}."
                )
                await _refuse(send, 401, why)
                return
            # Compare with all keys, so that the time does not show which key is nearly right.
            if rule.keys and not sum(hmac.compare_digest(given or b"", key.encode()) for key in rule.keys):
                why = "The API key is not this server's. Set {0} to the key that the server was started with."
                await _refuse(send, 401, why.format(rule.variable))
                return
            scope[ACCEPTED] = given
        await self._app(scope, receive, send)


class LoopbackNames:
    """Middleware that answers 403 if the request's ``Host`` is not a loopback address.

    A web page can make its own name resolve to this machine (DNS rebinding). A server that listens on a loopback
    address without a key would then answer the page.
    """

    def __init__(self, app: ASGIApp, instead: str, body_of: Callable[[Scope, str], bytes] | None = None) -> None:
        """Make the middleware.

        Args:
            app: application that answers all other requests.
            instead: advice for users who need a different name. It is part of the message.
            body_of: makes the JSON body of the 403 from the request and the message. None: ``{"detail": …}``.
        """
        self._app = app
        self._instead = instead
        self._body_of = body_of or (lambda _, why: _detail(why))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_loopback(_host_of(scope)):
            why = f"This server answers to 127.0.0.1 and localhost only. {self._instead}"
            await _send(send, 403, self._body_of(scope, why))
            return
        await self._app(scope, receive, send)


def check_binding(host: str, rule: KeyRule) -> None:
    """Raise ConfigError if other machines could reach a server that has no key."""
    if not rule.keys and not is_loopback(host):
        raise ConfigError(
            "missing-api-key",
            f"--host {host} lets other machines reach this server, and it has no API key.",
            f"Set {rule.variable} (or --api-key) to a key such as {rule.example}, or remove --host.",
        )


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for found, value in scope["headers"] if found == name), None)


def _host_of(scope: Scope) -> str:
    """Return the host name in the ``Host`` header, without the port: ``[::1]:80`` → ``::1``."""
    found = _HOST.fullmatch((_header(scope, b"host") or b"").decode("latin-1").lower())
    return "" if found is None else found[1] or found[2]


def _detail(why: str) -> bytes:
    return json.dumps({"detail": why}).encode()


async def _refuse(send: Send, status: int, why: str) -> None:
    await _send(send, status, _detail(why))


async def _send(send: Send, status: int, body: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
