"""A deadline and a limit for reading requests.

Without them a client that stops in the middle holds its connection for ever, and a path, header or trailer without an
end fills the memory: httptools keeps each until it is whole, and uvicorn keeps all of a request's.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 << 10
"""Most bytes of path and headers together, and of what stands between or behind pieces of a body."""


class DeadlineProtocol(HttpToolsProtocol):
    """uvicorn's, that hangs up on whoever is too slow to send a whole request, or sends `HEAD_BYTES` without a body.

    The time runs from the connection to the end of the first request, and of later ones from their first byte on.
    Between requests uvicorn's own timeout holds.
    """

    def __init__(self, read_seconds: float, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._read_seconds = read_seconds
        self._reading: asyncio.TimerHandle | None = None
        self._bytes_without_body = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._start_reading()

    def data_received(self, data: bytes) -> None:
        self._bytes_without_body += len(data)
        super().data_received(data)
        if self._bytes_without_body > HEAD_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        self._bytes_without_body = 0
        super().on_message_begin()
        if self._reading is None:
            self._start_reading()

    def on_body(self, body: bytes) -> None:
        self._bytes_without_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_reading()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_reading()
        super().connection_lost(exc)

    def _start_reading(self) -> None:
        self._reading = self.loop.call_later(self._read_seconds, self.transport.abort)

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None


def protocol(read_seconds: float) -> Callable[..., asyncio.Protocol]:
    """What uvicorn makes for each connection."""
    return functools.partial(DeadlineProtocol, read_seconds)
