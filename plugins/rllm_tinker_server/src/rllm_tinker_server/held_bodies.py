"""Bound the memory of request bodies that arrive or are read, for all keys together and for each."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rllm_tinker_server.owners import OWNER
from rllm_tinker_server.refusals import Busy
from rllm_tinker_server.shares import SharedLimit


class BoundHeldBodies:
    """Middleware that raises Busy (429) for a body without room. Its bytes are discarded as they arrive.

    Room for the declared length is reserved before the first byte is read, so an accepted body always completes. The
    room is free again when the request is answered.
    """

    def __init__(self, app: ASGIApp, max_held: int, max_body: int) -> None:
        """Make the middleware.

        Args:
            app: application that reads the bodies.
            max_held: maximum bytes of all bodies together, which owners share.
            max_body: maximum bytes of a body. The application rejects larger bodies.
        """
        self._app = app
        self._held = SharedLimit(max_held)
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        owner, reserved, arrived = scope[OWNER].name, 0, 0

        async def reserve(needed: int, message: Message | None) -> None:
            nonlocal reserved
            if needed <= reserved:
                return
            if not self._held.has_room(owner, needed - reserved):
                while message is None or message.get("more_body"):
                    message = await receive()
                raise Busy("Too many bytes of requests are arriving; send this one again later.")
            self._held.add(owner, needed - reserved)
            reserved = needed

        async def bounded() -> Message:
            nonlocal arrived
            if not arrived:
                await reserve(min(_declared_length(scope), self._max_body), None)
            message = await receive()
            arrived += len(message.get("body", b""))
            await reserve(min(arrived, self._max_body), message)
            return message

        try:
            await self._app(scope, bounded, send)
        finally:
            self._held.remove(owner, reserved)


def _declared_length(scope: Scope) -> int:
    """Return the length of the body in the request's header. 0 if the body arrives in chunks."""
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    return int(length) if length.isdigit() else 0
