"""Requests and answers of HTTP, as bytes."""

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
"""A JSON object: what `rllm_gateway.client.session` says of all calls inside."""
TRACEPARENT_LENGTH = 128


class ClientGoneError(Exception):
    """The client hung up."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """What path and headers say."""

    session: str
    role: str
    model: str | None
    """The model that the path names; None: it names none."""
    key: str
    """Empty: none was sent."""
    client_retry: int | None
    """Which retry the client says that this is, from 0; None: it says nothing."""
    traceparent: str | None
    metadata: Mapping[str, Any]
    """Of `METADATA`; that of the body counts where both name a key."""


def head_of(scope: Scope) -> Head:
    """Raises RefusedError: the name of the role cannot be used, or the metadata is no JSON object."""
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
    """The key of a request; empty: none was sent."""
    own = headers.get(b"x-api-key")
    if own is not None:
        return own.decode("latin-1")
    scheme, _, key = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _number(header: bytes | None) -> int | None:
    # isdigit of bytes knows ASCII alone, and nine digits are a number for sure.
    return int(header) if header is not None and header.isdigit() and len(header) < 10 else None


async def read_body(receive: Receive) -> bytes:
    """The whole body.

    Raises:
        RefusedError: it is too large, or compressed.
        ClientGoneError: the client hung up.
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
    """Returns when the client hangs up; to be called once the body is read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_whole(send: Send, gone: asyncio.Task[None], body: bytes, status: int = 200) -> bool:
    """Answer with JSON. Returns whether the client was still there."""
    await send_start(send, status, [JSON, (b"content-length", str(len(body)).encode())])
    return await send_rest(send, gone, body)


async def send_start(send: Send, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_rest(send: Send, gone: asyncio.Task[None], body: bytes) -> bool:
    """The last bytes of an answer. Returns whether the client was still there."""
    await send({"type": "http.response.body", "body": body, "more_body": True})
    # The event loop tells of a client that has gone before the end of the answer looks like one.
    await asyncio.sleep(0)
    there = not gone.done()
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return there


async def send_json(send: Send, body: bytes) -> None:
    """Answer with JSON, without a look at whether the client is still there."""
    await send_start(send, 200, [JSON, (b"content-length", str(len(body)).encode())])
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, refused: RefusedError, body: bytes) -> None:
    headers = [JSON, (b"content-length", str(len(body)).encode()), *refused.headers]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
