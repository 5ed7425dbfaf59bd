"""Limit the size and the encoding of request bodies. Data above the limit is discarded as it arrives, not stored."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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

        async def limited() -> Message:
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

        await self._app(scope, limited, send)

    async def _drain(self, message: Message, receive: Receive) -> None:
        left = DRAINED * self._max_bytes
        while message.get("more_body") and left > 0:
            message = await receive()
            left -= len(message.get("body", b""))
