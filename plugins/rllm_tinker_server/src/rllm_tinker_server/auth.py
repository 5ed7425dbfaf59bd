"""Who may ask: the key in ``X-API-Key``, and the addresses that may be bound without one."""

from __future__ import annotations

import hmac
import ipaddress
import json
import re

from starlette.types import ASGIApp, Receive, Scope, Send

from rllm_core.errors import ConfigError

HEALTH = "/api/v1/healthz"
WRONG_KEY = "The API key is not this server's. Set TINKER_API_KEY to the key that the server was started with."
NO_KEY = "There is no X-API-Key. This server accepts any key; Tinker clients need one such as tml-local."
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]+))(?::[0-9]+)?")


class RequireKey:
    """Answers 401 to requests without the key.

    Where no key is set, any is accepted but none is not: every Tinker client sends one, and a web page that makes a
    browser on this machine send requests cannot. Unless its own name is made to mean this machine (DNS rebinding): so
    without a key, 403 to whoever calls this machine something else than a loopback address.
    """

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self._app = app
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._key is None and not is_loopback(_host_of(scope)):
            await _refuse(
                send, 403, "Without an API key this server answers to 127.0.0.1 and localhost only. Set TINKER_API_KEY."
            )
            return
        if scope["type"] == "http" and scope["path"] != HEALTH and not self._accepts(scope):
            await _refuse(send, 401, WRONG_KEY if self._key is not None else NO_KEY)
            return
        await self._app(scope, receive, send)

    def _accepts(self, scope: Scope) -> bool:
        given = _header(scope, b"x-api-key")
        if given is None:
            return False
        return self._key is None or hmac.compare_digest(given, self._key)


def check_binding(host: str, key: str | None) -> None:
    """Raise ConfigError when other machines could reach a server that has no key."""
    if key is None and not is_loopback(host):
        raise ConfigError(
            f"--host {host} lets other machines reach this server, and it has no API key.",
            "Set TINKER_API_KEY (or --api-key) to a key that starts with tml-, or leave --host out.",
        )
    if key is not None and not key.startswith(("tml-", "eyJ")):
        raise ConfigError(
            "The API key does not start with tml-, and Tinker clients refuse to send such a key.",
            "Use one like tml-SOMETHING-LONG-AND-RANDOM.",
        )


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine reach that address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for found, value in scope["headers"] if found == name), None)


def _host_of(scope: Scope) -> str:
    """What the client called this machine, without the port: ``[::1]:80`` → ``::1``."""
    found = _HOST.fullmatch((_header(scope, b"host") or b"").decode("latin-1").lower())
    return "" if found is None else found[1] or found[2]


async def _refuse(send: Send, status: int, why: str) -> None:
    body = json.dumps({"detail": why}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
