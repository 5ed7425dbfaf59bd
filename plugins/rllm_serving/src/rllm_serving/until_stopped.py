"""A server of the command line: it ends with a signal, with its parent, or by itself."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from rllm_serving.http_server import HttpServer, NotStartedError
from rllm_serving.parent import when_parent_ends

INTERRUPTED = 130
NOT_STARTED = 3
"""Exit code of a server that fails before it answers; uvicorn's own."""


class Stop:
    """Set by SIGTERM, by SIGINT, or by hand. To be made on the event loop that serves, on the main thread."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.exit_code = 0
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.event.set)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)

    def set_with_parent(self) -> None:
        """Set it too when standard input closes."""
        when_parent_ends(self.event.set)

    def _interrupt(self) -> None:
        self.exit_code = INTERRUPTED
        self.event.set()


async def serve_until(
    stop: asyncio.Event, server: HttpServer, ready: Callable[[], None], before_stopping: Callable[[], None]
) -> None:
    """Serve until `stop` is set or the server ends.

    Args:
        stop: set by whoever wants it to end.
        server: not started yet.
        ready: called once requests are answered.
        before_stopping: called when it is to end, for requests that would be held.

    Raises:
        SystemExit: with `NOT_STARTED`, when the application does not start.
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
