"""A deadline and a limit for reading requests.

Without them a client that stops in the middle holds its connection for ever, and a path or header without an end fills
the memory: httptools keeps both until they are whole.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 << 10
"""Most bytes of path and headers together."""


class DeadlineProtocol(HttpToolsProtocol):
    """uvicorn's, that hangs up on whoever is too slow to send a whole request, or sends a head above `HEAD_BYTES`.

    The time runs from the connection to the end of the first request, and of later ones from their first byte on.
    Between requests uvicorn's own timeout holds.
    """

    def __init__(self, read_seconds: float, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._read_seconds = read_seconds
        self._reading: asyncio.TimerHandle | None = None
        self._in_head = True
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._start_reading()

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        # What comes behind a whole head is its body, or a later request.
        if self._in_head and self._head_bytes > HEAD_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()
        if self._reading is None:
            self._start_reading()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

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
