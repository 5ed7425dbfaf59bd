"""The endpoint of one API. It reads a request, waits for the answer, and sends it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from starlette.types import Receive, Scope, Send

from rllm_gateway.exchange import KEEP_ALIVE, Api, Asked, EventStream
from rllm_gateway.fields import json_object
from rllm_gateway.gateway import Gateway
from rllm_gateway.http import (
    STREAM,
    ClientGoneError,
    head_of,
    read_body,
    send_error,
    send_rest,
    send_start,
    send_whole,
    until_gone,
)
from rllm_gateway.live_session import LiveSession
from rllm_gateway.refusals import RefusedError
from rllm_gateway.work import Work

LOG = logging.getLogger(__name__)


class Endpoint:
    """ASGI application that serves one API."""

    def __init__(self, gateway: Gateway, api: Api) -> None:
        self._gateway = gateway
        self._api = api

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
            failed = _logged(error)
            await send_error(send, failed, self._api.error(failed))
        finally:
            gateway.in_flight -= 1

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = head_of(scope)
        session = self._gateway.session(head.session, head.key)
        session.requests += 1
        session.roles.add(head.role)
        asked = self._api.read(json_object(await read_body(receive)), session.spec.unsupported)
        asked = replace(
            asked,
            role=head.role,
            metadata={**head.metadata, **asked.metadata},
            client_retry=head.client_retry,
            traceparent=head.traceparent,
        )
        gone = asyncio.create_task(until_gone(receive))
        session.in_flight += 1
        try:
            work = await self._begun(session, asked, gone)
            with work.awaited():
                if asked.stream:
                    there = await self._stream(work, asked, gone, send)
                else:
                    await work.wait(gone)
                    there = await send_whole(send, gone, self._api.answer(asked, work.result()))
            if there:
                self._gateway.note_delivery(session, work)
        finally:
            session.in_flight -= 1
            gone.cancel()

    async def _begun(self, session: LiveSession, asked: Asked, gone: asyncio.Task[None]) -> Work:
        """Begin the work on a request. If no policy is attached, wait for one, unless the client disconnects."""
        if self._gateway.is_attached:
            return await self._gateway.begin(session, asked)
        beginning = asyncio.create_task(self._gateway.begin(session, asked))
        try:
            await asyncio.wait({beginning, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not beginning.done():
                raise ClientGoneError
            return beginning.result()
        finally:
            beginning.cancel()

    async def _stream(self, work: Work, asked: Asked, gone: asyncio.Task[None], send: Send) -> bool:
        """Send the events of an answer as soon as parts of its text are final. Comments keep the connection alive.

        The headers are sent with the first event or comment. So a request that fails early has the right HTTP status.
        """
        sending = _Sending(send)
        try:
            events = await self._while_sampled(work, asked, gone, sending)
            answer = work.result()
            rest = (events or self._api.stream(asked, answer)).end(answer)
        except ClientGoneError:
            raise
        except Exception as error:
            if not sending.begun:
                raise
            refused = error if isinstance(error, RefusedError) else _logged(error)
            await send_rest(send, gone, self._api.error_event(refused))
            return False
        await sending.begin()
        return await send_rest(send, gone, rest)

    async def _while_sampled(
        self, work: Work, asked: Asked, gone: asyncio.Task[None], sending: _Sending
    ) -> EventStream | None:
        """Send text until the answer is complete. Return the stream. None if no text was sent."""
        events: EventStream | None = None
        growing, looked = work.growing, dict[int, int]()
        seconds = self._gateway.limits.keep_alive_seconds
        while True:
            # Get the event before the tokens are read, so that no token is missed.
            news = None if growing is None else growing.news
            if growing is not None and growing.begun is not None and not work.task.done():
                for index, settled in growing.settled(looked).items():
                    events = events or self._api.stream(asked, growing.begun)
                    await sending.send(events.add(index, settled))
            if await work.wait(gone, seconds, news):
                return events
            if news is None or not news.is_set():
                await sending.send(KEEP_ALIVE)


class _Sending:
    """Sends the headers and all but the last part of a streamed answer."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def begin(self) -> None:
        """Send the headers, once."""
        if not self.begun:
            await send_start(self._send, 200, STREAM)
            self.begun = True

    async def send(self, body: bytes) -> None:
        """Send bytes if there are any."""
        if body:
            await self.begin()
            await self._send({"type": "http.response.body", "body": body, "more_body": True})


def _logged(error: Exception) -> RefusedError:
    """Log an unexpected error of the renderer, the policy or the gateway, and return the error for the client."""
    LOG.error("a request failed", exc_info=error)
    return RefusedError(500, "failed", f"The gateway failed: {type(error).__name__}. See the gateway's log.")
