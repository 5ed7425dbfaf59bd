"""An ASGI application served on a free port of this machine, on the event loop of its caller."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

LOOPBACK = "127.0.0.1"
POLL = 0.01
GRACE = 5
"""Seconds that open connections have to end when the server stops."""


class HttpServer:
    """Listens from `start` to `stop`."""

    def __init__(self, app: Any) -> None:
        config = uvicorn.Config(
            app, log_level="warning", lifespan="off", access_log=False, timeout_graceful_shutdown=GRACE
        )
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Returns ``host:port`` once requests are answered."""
        # asyncio sends small answers at once (TCP_NODELAY) only on sockets that say they are TCP.
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.bind((LOOPBACK, 0))
        host, port = listening.getsockname()
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]), name="rllm-rollout-http")
        while not self._server.started:
            if self._serving.done():
                await self._serving
                raise RuntimeError("The HTTP server ended while it started.")
            await asyncio.sleep(POLL)
        return f"{host}:{port}"

    async def stop(self) -> None:
        """Stop listening; requests under way have some seconds to end."""
        if self._serving is not None:
            self._server.should_exit = True
            await self._serving


class _Server(uvicorn.Server):
    """Leaves signals to the process that it is in."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
