"""Endpoints of the APIs: read a request's head and body, wait for the answer, and send it as bytes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from rllm_gateway.apis.exchange import KEEP_ALIVE, Api, ClientGoneError, EventStream, ModelRequest, PendingResponse
from rllm_gateway.apis.fields import RefusedError, invalid, json_object
from rllm_gateway.client import REWARD_KEY_HEADER, ROLE
from rllm_gateway.serving.gateway import Gateway
from rllm_gateway.sessions.live_session import LiveSession

JSON = (b"content-type", b"application/json")
STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
METADATA = b"x-rllm-metadata"
"""Header with a JSON object: the metadata of the enclosing `rllm_gateway.client.session`."""


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
    reward_key: str
    """Value of the header `REWARD_KEY_HEADER`. Empty if the client sent none."""
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
    return Head(
        session=named["session"],
        role=named["role"],
        model=named.get("model"),
        key=key_of(headers),
        client_retry=_number(headers.get(b"x-stainless-retry-count")),
        reward_key=headers.get(REWARD_KEY_HEADER.lower().encode(), b"").decode("latin-1"),
        metadata=json_object(headers[METADATA], "The header X-Rllm-Metadata") if METADATA in headers else {},
    )


def key_of(headers: dict[bytes, bytes]) -> str:
    """Return the API key of a request. Empty if the client sent none."""
    own = headers.get(b"x-api-key", headers.get(b"x-goog-api-key"))
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


async def wait_for_disconnect(receive: Receive) -> None:
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


LOG = logging.getLogger(__name__)


class Endpoint:
    """ASGI application that serves one API."""

    def __init__(self, gateway: Gateway, api: Api, keep_alive: bytes = KEEP_ALIVE) -> None:
        self._gateway = gateway
        self._api = api
        self._keep_alive = keep_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = self._gateway
        gateway.in_flight += 1
        try:
            if scope["method"] != "POST":
                raise RefusedError(405, "invalid", "Requests of this API are sent with POST.")
            if gateway.in_flight > gateway.limits.in_flight:
                raise RefusedError(
                    429, "busy", "The gateway has reached its limit of requests in flight. Send the request again."
                )
            await self._respond(scope, receive, send)
        except RefusedError as refused:
            await send_error(send, refused, self._api.error(refused))
        except ClientGoneError:
            return
        except Exception as error:  # noqa: BLE001  (a renderer or a policy may raise anything)
            failed = _log_error(error)
            await send_error(send, failed, self._api.error(failed))
        finally:
            gateway.in_flight -= 1

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = head_of(scope)
        session = self._gateway.session(head.session, head.key)
        session.requests += 1
        session.roles.add(head.role)
        request = self._api.read(json_object(await read_body(receive)), session.spec.unsupported)
        request = replace(
            request,
            role=head.role,
            model=request.model or head.model or "",
            metadata={**head.metadata, **request.metadata},
            client_retry=head.client_retry,
        )
        gone = asyncio.create_task(wait_for_disconnect(receive))
        session.in_flight += 1
        try:
            pending = await self._begin(session, request, gone)
            with pending.count_waiter():
                if request.stream:
                    there = await self._stream(pending, request, gone, send)
                else:
                    await pending.wait(gone)
                    pending.check()
                    there = await send_whole(send, gone, self._api.answer(request, pending))
            if there:
                self._gateway.note_delivery(session, pending)
        finally:
            session.in_flight -= 1
            gone.cancel()

    async def _begin(self, session: LiveSession, request: ModelRequest, gone: asyncio.Task[None]) -> PendingResponse:
        """Begin to answer a request. If no policy is attached, wait for one, unless the client disconnects."""
        if self._gateway.is_attached:
            return await self._gateway.begin(session, request)
        beginning = asyncio.create_task(self._gateway.begin(session, request))
        try:
            await asyncio.wait({beginning, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not beginning.done():
                raise ClientGoneError
            return beginning.result()
        finally:
            beginning.cancel()

    async def _stream(
        self, pending: PendingResponse, request: ModelRequest, gone: asyncio.Task[None], send: Send
    ) -> bool:
        """Send the events of an answer as soon as parts of its text are final. Comments keep the connection alive.

        The headers are sent with the first event or comment. So a request that fails early has the right HTTP status.
        """
        sending = _Sending(send)
        try:
            events = await self._send_partial(pending, request, gone, sending)
            pending.check()
            rest = (events or self._api.stream(request, pending)).end(pending)
        except ClientGoneError:
            raise
        except Exception as error:
            if not sending.has_begun:
                raise
            refused = error if isinstance(error, RefusedError) else _log_error(error)
            await send_rest(send, gone, self._api.error_event(refused))
            return False
        await sending.begin()
        return await send_rest(send, gone, rest)

    async def _send_partial(
        self, pending: PendingResponse, request: ModelRequest, gone: asyncio.Task[None], sending: _Sending
    ) -> EventStream | None:
        """Send text until the answer is complete. Return the stream. None if no text was sent."""
        events: EventStream | None = None
        looked = dict[int, int]()
        seconds = self._gateway.limits.keep_alive_seconds
        while True:
            # Get the event before the tokens are read, so that no token is missed.
            news = pending.news
            for index, final in ({} if pending.task.done() else pending.read_final_text(looked)).items():
                events = events or self._api.stream(request, pending)
                await sending.send(events.add(index, final))
            if await pending.wait(gone, seconds, news):
                return events
            if not news.is_set():
                await sending.send(self._keep_alive)


class _Sending:
    """Sends the headers and all but the last part of a streamed answer."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def begin(self) -> None:
        """Send the headers, once."""
        if not self.has_begun:
            await send_start(self._send, 200, STREAM)
            self.has_begun = True

    async def send(self, body: bytes) -> None:
        """Send bytes if there are any."""
        if body:
            await self.begin()
            await self._send({"type": "http.response.body", "body": body, "more_body": True})


def _log_error(error: Exception) -> RefusedError:
    """Log an unexpected error of the renderer, the policy or the gateway, and return the error for the client."""
    LOG.error("a request failed", exc_info=error)
    return RefusedError(500, "failed", f"The gateway failed: {type(error).__name__}. See the gateway's log.")
