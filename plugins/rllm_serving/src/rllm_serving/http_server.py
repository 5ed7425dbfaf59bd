"""An ASGI application served on a socket, on the event loop of its caller."""

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
"""Seconds that open connections have to end when the server stops."""
READ_SECONDS = 60.0
"""Longest that a request may take to arrive: 5 MB at 700 kbit/s."""


class NotStartedError(Exception):
    """The application failed while it started; uvicorn has logged why."""


class HttpServer:
    """Listens from `start` to `stop`."""

    def __init__(
        self,
        app: Any,
        listening: socket.socket,
        *,
        lifespan: Literal["on", "off"] = "off",
        read_seconds: float = READ_SECONDS,
    ) -> None:
        """Nothing is answered yet.

        Args:
            app: the ASGI application.
            listening: from `listening.listen`; closed in the end.
            lifespan: whether the application is told of start and end.
            read_seconds: connections are cut that have not sent a whole request by then.
        """
        config = uvicorn.Config(
            app,
            # uvicorn calls what it is given; its annotation asks for a class.
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
        """Returns once requests are answered. Raises NotStartedError."""
        self._serving = asyncio.create_task(self._serve(), name="rllm-http")
        while not self._server.started:
            if self._serving.done():
                await self._serving
                raise NotStartedError
            await asyncio.sleep(POLL)

    async def ended(self) -> None:
        """Returns when it has stopped, whoever stopped it."""
        assert self._serving is not None
        await asyncio.wait({self._serving})

    async def stop(self) -> None:
        """Stop listening; requests under way have some seconds to end. Nothing where it has not started."""
        self._server.should_exit = True
        if self._serving is not None:
            with suppress(NotStartedError):
                await self._serving

    async def _serve(self) -> None:
        try:
            await self._server.serve(sockets=[self._listening])
        except SystemExit as error:
            # uvicorn from 0.50 on ends the process where the application does not start.
            raise NotStartedError from error
        finally:
            self._listening.close()


class _Server(uvicorn.Server):
    """Leaves signals to the process that it is in."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
