"""Serve an ASGI application on a socket, until a signal, the end of the parent process, or the server's own end.

Each request has a deadline and a limit for its head. Without a deadline, a client that stops in the middle of a request
keeps its connection open forever. Without a limit, a path, header or trailer that never ends fills the memory:
httptools stores each until it is complete, and uvicorn stores all headers of a request.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rllm_serving.child_process import when_parent_ends
from rllm_serving.listening import BACKLOG

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


POLL = 0.01
GRACE = 5
"""Seconds that open connections have to finish when the server stops."""
READ_SECONDS = 60.0
"""Time limit for receiving a request. It is enough for 5 MB at 700 kbit/s."""


class NotStartedError(Exception):
    """The application failed to start. uvicorn has logged the reason."""


class HttpServer:
    """A server that listens from `start` to `stop`."""

    def __init__(
        self,
        app: Any,
        listening: socket.socket,
        *,
        lifespan: Literal["on", "off"] = "off",
        read_seconds: float = READ_SECONDS,
    ) -> None:
        """Make a server that is not started.

        Args:
            app: the ASGI application.
            listening: socket from `listening.listen`. The server closes it at the end.
            lifespan: ``on`` if the application gets ASGI lifespan events.
            read_seconds: time limit for receiving a request. After it, the connection is closed.
        """
        config = uvicorn.Config(
            app,
            # uvicorn's annotation requires a class, but any callable works.
            http=functools.partial(DeadlineProtocol, read_seconds),  # type: ignore[arg-type]
            log_level="warning",
            access_log=False,
            lifespan=lifespan,
            timeout_graceful_shutdown=GRACE,
            backlog=BACKLOG,
        )
        self._server = _Server(config)
        self._listening = listening
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the server, and return when it answers requests.

        Raises:
            NotStartedError: the application failed to start.
        """
        self._serving = asyncio.create_task(self._serve(), name="rllm-http")
        while not self._server.started:
            if self._serving.done():
                await self._serving
                raise NotStartedError
            await asyncio.sleep(POLL)

    async def wait_until_end(self) -> None:
        """Wait until the server has stopped for any reason."""
        assert self._serving is not None
        await asyncio.wait({self._serving})

    async def stop(self) -> None:
        """Stop the server. Running requests have `GRACE` seconds to finish. Do nothing if it has not started."""
        self._server.should_exit = True
        if self._serving is not None:
            with suppress(NotStartedError):
                await self._serving

    async def _serve(self) -> None:
        try:
            await self._server.serve(sockets=[self._listening])
        except SystemExit as error:
            # Since version 0.50, uvicorn raises SystemExit if the application does not start.
            raise NotStartedError from error
        finally:
            self._listening.close()


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, because the process handles signals itself."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


INTERRUPTED = 130
NOT_STARTED = 3
"""Exit code of a server that fails to start. uvicorn uses the same code."""


class Stop:
    """An event that SIGTERM or SIGINT sets. Make it on the main thread, on the event loop of the server."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.exit_code = 0
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.event.set)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)

    def set_with_parent(self) -> None:
        """Set the event also when standard input closes."""
        when_parent_ends(self.event.set)

    def _interrupt(self) -> None:
        self.exit_code = INTERRUPTED
        self.event.set()


async def serve_until(
    stop: asyncio.Event, server: HttpServer, ready: Callable[[], None], before_stopping: Callable[[], None]
) -> None:
    """Serve until `stop` is set or the server ends.

    Args:
        stop: event that stops the server.
        server: a server that is not started yet.
        ready: called when the server answers requests.
        before_stopping: called before the server stops, to end requests that would otherwise keep waiting.

    Raises:
        SystemExit: with `NOT_STARTED`, if the application does not start.
    """
    stopping = asyncio.create_task(stop.wait())
    try:
        await server.start()
        ready()
        ended = asyncio.create_task(server.wait_until_end())
        await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
    except NotStartedError:
        raise SystemExit(NOT_STARTED) from None
    finally:
        stopping.cancel()
        before_stopping()
        await server.stop()
