"""Run a command-line server until a signal, the end of its parent, or its own end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from rllm_serving.http_server import HttpServer, NotStartedError
from rllm_serving.parent import when_parent_ends

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
        ended = asyncio.create_task(server.ended())
        await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
    except NotStartedError:
        raise SystemExit(NOT_STARTED) from None
    finally:
        stopping.cancel()
        before_stopping()
        await server.stop()
