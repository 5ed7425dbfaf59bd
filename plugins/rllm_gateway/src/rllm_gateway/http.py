"""Read HTTP requests, and send answers as bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from rllm_gateway.client import ROLE
from rllm_gateway.fields import json_object
from rllm_gateway.refusals import RefusedError, invalid

JSON = (b"content-type", b"application/json")
STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
METADATA = b"x-rllm-metadata"
"""Header with a JSON object: the metadata of the enclosing `rllm_gateway.client.session`."""
TRACEPARENT_LENGTH = 128


class ClientGoneError(Exception):
    """The client disconnected."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """The data in a request's path and headers."""

    session: str
    role: str
    model: str | None
    """The model in the path. None if the path contains none."""
    key: str
    """API key. Empty if the client sent none."""
    client_retry: int | None
    """Number of the client's retry, from 0. None if the client sent none."""
    traceparent: str | None
    metadata: Mapping[str, Any]
    """Value of the header `METADATA`. If the body has the same key, the body's value applies."""


def head_of(scope: Scope) -> Head:
    """Read the path and headers of a request.

    Raises:
        RefusedError: the role's name is not valid, or the metadata is not a JSON object.
    """
    headers = dict(scope["headers"])
    named = scope["path_params"]
    if not ROLE.fullmatch(named["role"]):
        raise invalid("A role in the path is 1 to 64 letters, digits, '-', '_', '.' and '~', but not '.', '..' or v1.")
    traceparent = headers.get(b"traceparent")
    return Head(
        session=named["session"],
        role=named["role"],
        model=named.get("model"),
        key=key_of(headers),
        client_retry=_number(headers.get(b"x-stainless-retry-count")),
        traceparent=None if traceparent is None else traceparent[:TRACEPARENT_LENGTH].decode("latin-1"),
        metadata=json_object(headers[METADATA], "The header X-Rllm-Metadata") if METADATA in headers else {},
    )


def key_of(headers: dict[bytes, bytes]) -> str:
    """Return the API key of a request. Empty if the client sent none."""
    own = headers.get(b"x-api-key")
    if own is not None:
        return own.decode("latin-1")
    scheme, _, key = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _number(header: bytes | None) -> int | None:
    # `isdigit` of bytes accepts only ASCII digits. The limit of nine digits keeps the number small.
    return int(header) if header is not None and header.isdigit() and len(header) < 10 else None


async def read_body(receive: Receive) -> bytes:
    """Read the whole body.

    Raises:
        RefusedError: the body is too large, or compressed.
        ClientGoneError: the client disconnected.
    """
    pieces = list[bytes]()
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            pieces.append(message.get("body", b""))
            if not message.get("more_body", False):
                return b"".join(pieces)
    except HTTPException as error:
        raise RefusedError(error.status_code, "too_large", error.detail) from None


async def until_gone(receive: Receive) -> None:
    """Wait until the client disconnects. Call it after the body is read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_whole(send: Send, gone: asyncio.Task[None], body: bytes, status: int = 200) -> bool:
    """Answer with JSON. Return True if the client was still connected."""
    await send_start(send, status, [JSON, (b"content-length", str(len(body)).encode())])
    return await send_rest(send, gone, body)


async def send_start(send: Send, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_rest(send: Send, gone: asyncio.Task[None], body: bytes) -> bool:
    """Send the last bytes of an answer. Return True if the client was still connected."""
    await send({"type": "http.response.body", "body": body, "more_body": True})
    # Let the event loop report a disconnected client first, because the end of the answer looks like a disconnection.
    await asyncio.sleep(0)
    there = not gone.done()
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return there


async def send_json(send: Send, body: bytes) -> None:
    """Answer with JSON, without a check that the client is still connected."""
    await send_start(send, 200, [JSON, (b"content-length", str(len(body)).encode())])
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, refused: RefusedError, body: bytes) -> None:
    headers = [JSON, (b"content-length", str(len(body)).encode()), *refused.headers]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
