"""Serve an ASGI application on a socket, on the caller's event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

import uvicorn

from rllm_serving.listening import BACKLOG
from rllm_serving.read_deadline import protocol

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
            http=protocol(read_seconds),  # type: ignore[arg-type]
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

    async def ended(self) -> None:
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
