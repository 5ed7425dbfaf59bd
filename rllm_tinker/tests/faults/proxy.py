"""An HTTP proxy between client and server that loses requests and answers on demand."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import urlsplit

DEADLINE = 100.0
LATE = 0.5
"""Seconds by which `Fault.LATE` delays an answer."""


class Fault(Enum):
    """Fault of a request. The server executes the request unless the value is one of the first."""

    LOST_REQUEST = "the connection breaks before the server has the request"
    STATUS_408 = 408
    STATUS_429 = 429
    STATUS_500 = 500
    STATUS_503 = 503
    LOST_ANSWER = "the connection breaks before anything of the answer is sent"
    HALF_AN_ANSWER = "the connection breaks in the middle of the answer"
    LATE_ANSWER = "the answer comes late"


@dataclass(eq=False)
class FaultyProxy:
    """Forwards to `target`. Its settings may be changed at any time, from any thread."""

    target: str
    url: str = ""
    fault: Fault | None = None
    times: float = math.inf
    """How many requests of each route, the first ones, meet the fault."""
    routes: frozenset[str] = frozenset()
    """Routes with the fault, such as ``asample``. If it is empty, all routes have it."""
    spared: frozenset[str] = frozenset()
    """Routes that never have the fault."""
    arrived: Counter[str] = field(default_factory=Counter)
    """Requests by route."""
    met: Counter[str] = field(default_factory=Counter)
    """Requests that met a fault, by route."""
    before: dict[str, Callable[[], None]] = field(default_factory=dict)
    """Called once, when a request of that route has arrived and before the server is sent it."""
    after: dict[str, Callable[[], None]] = field(default_factory=dict)
    """Called once, when the server has been sent a request of that route."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request; its connection is closed then."""
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                request = await _message(reader)
                writer.write(await self._answer(request))
                await writer.drain()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, request: bytes) -> bytes:
        route = request.split(b" ", 2)[1].decode().partition("?")[0].removeprefix("/api/v1/")
        self.arrived[route] += 1
        fault = self._next_fault(route)
        if fault is Fault.LOST_REQUEST:
            return b""
        if fault is not None and isinstance(fault.value, int):
            return b"HTTP/1.1 %d Fault\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}" % fault.value
        answer = await self._forwarded(route, request)
        if fault is Fault.LOST_ANSWER:
            return b""
        if fault is Fault.HALF_AN_ANSWER:
            return answer[: len(answer) // 2]
        if fault is Fault.LATE_ANSWER:
            await asyncio.sleep(LATE)
        return answer

    async def _forwarded(self, route: str, request: bytes) -> bytes:
        _call_once(self.before, route)
        target = urlsplit(self.target)
        reader, writer = await asyncio.open_connection(target.hostname, target.port)
        try:
            head, _, body = request.partition(b"\r\n\r\n")
            lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
            writer.write(b"\r\n".join([*lines, b"connection: close"]) + b"\r\n\r\n" + body)
            await writer.drain()
            _call_once(self.after, route)
            return await reader.read(-1)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _next_fault(self, route: str) -> Fault | None:
        chosen = route in self.routes if self.routes else route not in self.spared
        if self.fault is None or not chosen or self.met[route] >= self.times:
            return None
        self.met[route] += 1
        return self.fault


@contextmanager
def faulty_proxy(target: str) -> Iterator[FaultyProxy]:
    """A proxy in front of the server at that URL, on its own thread."""
    proxy = FaultyProxy(target)
    started, stop, loops = threading.Event(), asyncio.Event(), list[asyncio.AbstractEventLoop]()

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        tasks: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(proxy.serve(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        await stop.wait()
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(main(),), name="faulty-proxy", daemon=True)
    thread.start()
    try:
        assert started.wait(DEADLINE)
        yield proxy
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(DEADLINE)


async def _message(reader: asyncio.StreamReader) -> bytes:
    """A whole request: head and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    fields = (line.partition(b":") for line in head.lower().split(b"\r\n")[1:])
    length = next((int(value) for name, _, value in fields if name == b"content-length"), 0)
    return head + await reader.readexactly(length)


def _call_once(calls: dict[str, Callable[[], None]], route: str) -> None:
    call = calls.pop(route, None)
    if call is not None:
        call()
