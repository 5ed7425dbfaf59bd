"""The endpoint of one API: reads a request, waits for its answer, sends it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from starlette.types import Receive, Scope, Send

from rllm_gateway.asked import Api, Asked
from rllm_gateway.events import KEEP_ALIVE
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
from rllm_gateway.live_session import LiveSession, Work
from rllm_gateway.refusals import RefusedError
from rllm_gateway.requests import Request
from rllm_gateway.waiting import answer_of, answered, waiting_for

LOG = logging.getLogger(__name__)


class Endpoint:
    """An ASGI application."""

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
        except Exception as error:
            # Somebody's renderer or policy, or a fault of ours: the client is told, and the log says where.
            LOG.exception("a request failed")
            failed = RefusedError(500, "failed", f"The gateway failed: {type(error).__name__}. Its log says where.")
            await send_error(send, failed, self._api.error(failed))
        finally:
            gateway.in_flight -= 1

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = head_of(scope)
        session = self._gateway.session(head.session, head.key)
        session.requests += 1
        session.roles.add(head.role)
        asked = self._api.read(json_object(await read_body(receive)), session.spec.unsupported)
        if head.metadata:
            asked = replace(asked, metadata={**head.metadata, **asked.metadata})
        request = Request(role=head.role, asked=asked, client_retry=head.client_retry, traceparent=head.traceparent)
        gone = asyncio.create_task(until_gone(receive))
        session.in_flight += 1
        try:
            work = await self._begun(session, request, gone)
            with waiting_for(work):
                if asked.stream:
                    there = await self._stream(work, asked, gone, send)
                else:
                    await answered(work, gone)
                    there = await send_whole(send, gone, self._api.answer(asked, answer_of(work)))
            if there:
                self._gateway.note_delivery(session, work)
        finally:
            session.in_flight -= 1
            gone.cancel()

    async def _begun(self, session: LiveSession, request: Request, gone: asyncio.Task[None]) -> Work:
        """Without a policy this takes a while, and the client may go away meanwhile."""
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

    async def _stream(self, work: Work, asked: Asked, gone: asyncio.Task[None], send: Send) -> bool:
        """The events of an answer; until there is one, comments that keep the connection alive.

        The headers wait for the first comment, so that what fails early fails with its own status.
        """
        begun = False
        while not await answered(work, gone, self._gateway.limits.keep_alive_seconds):
            if not begun:
                await send_start(send, 200, STREAM)
                begun = True
            await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
        try:
            events = self._api.events(asked, answer_of(work))
        except RefusedError as refused:
            if not begun:
                raise
            await send_rest(send, gone, self._api.error_event(refused))
            return False
        if not begun:
            await send_start(send, 200, STREAM)
        return await send_rest(send, gone, events)
