"""A deadline and a limit for reading requests.

Without a deadline, a client that stops in the middle of a request keeps its connection open forever. Without a limit, a
path, header or trailer that never ends fills the memory: httptools stores each until it is complete, and uvicorn stores
all headers of a request.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 << 10
"""Maximum number of bytes of the path and headers together. It also limits the bytes between and after the chunks of a
body."""


class DeadlineProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with a deadline and a limit.

    It closes the connection if a client is too slow to send a whole request, or sends more than `HEAD_BYTES` that are
    not part of a body. The time of the first request starts with the connection. The time of a later request starts
    with its first byte. Between requests, uvicorn's own timeout applies.
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
    """Return the function with which uvicorn makes a protocol for each connection."""
    return functools.partial(DeadlineProtocol, read_seconds)
