"""An HTTP proxy between client and server that acts when a request passes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

DEADLINE = 100.0


@dataclass(eq=False)
class Proxy:
    """Forwards to `target`. Its settings may be changed at any time, from any thread."""

    target: str
    url: str = ""
    before: dict[str, Callable[[], None]] = field(default_factory=dict)
    """Called once, when a request of that route has arrived and before the server is sent it."""
    after: dict[str, Callable[[], None]] = field(default_factory=dict)
    """Called once, when the server has been sent a request of that route."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request; its connection is closed then."""
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                writer.write(await self._forward(await _message(reader)))
                await writer.drain()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _forward(self, request: bytes) -> bytes:
        route = request.split(b" ", 2)[1].decode().partition("?")[0].removeprefix("/api/v1/")
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


@contextmanager
def open_proxy(target: str) -> Iterator[Proxy]:
    """A proxy in front of the server at that URL, on its own thread."""
    proxy = Proxy(target)
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

    thread = threading.Thread(target=asyncio.run, args=(main(),), name="proxy", daemon=True)
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
