"""Run the server: on the main thread until a signal, or on a separate thread inside a different program."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rllm_serving.announcement import announce
from rllm_serving.http_server import HttpServer
from rllm_serving.listening import LOOPBACK, listen, url_of
from rllm_serving.until_stopped import Stop, serve_until
from rllm_tinker_server.app import create_app
from rllm_tinker_server.auth import check_key
from rllm_tinker_server.service import Service

START_DEADLINE = 60.0


@dataclass(frozen=True, kw_only=True)
class TinkerServeOptions:
    """Address of the server, and conditions to stop."""

    host: str = LOOPBACK
    port: int = 0
    """Port. 0 means any free port."""
    key: str | None = None
    """Key that clients must send as X-API-Key. With None any key works, and only this machine can connect."""
    announce: Path | None = None
    """File to write the server's address to when it listens, for the program that started it."""
    end_with_stdin: bool = False
    """Stop when standard input is closed. This happens when the parent process dies, because it has the other end."""


@dataclass(frozen=True)
class RunningServer:
    """A server on a thread of this process."""

    url: str
    service: Service


def serve(service: Service, options: TinkerServeOptions, listening: socket.socket, ready: Callable[[str], None]) -> int:
    """Serve until SIGTERM, SIGINT or the end of standard input, and return the exit code.

    `listening` comes from `listen_for`. `ready` receives the URL when the server answers requests. At the end, the
    server does not wait for its worker threads.
    """
    url = url_of(listening)

    def announced() -> None:
        if options.announce is not None:
            announce(options.announce, listening)
        ready(url)

    async def main() -> int:
        stop = Stop()
        if options.end_with_stdin:
            stop.set_with_parent()
        await _serve(service, options, listening, announced, stop.event)
        return stop.exit_code

    return asyncio.run(main())


@contextmanager
def running_server(service: Service, options: TinkerServeOptions | None = None) -> Iterator[RunningServer]:
    """Serve on a thread with a separate event loop, because clients in this process may block their event loop.

    Raises:
        ConfigError: the server cannot listen on the address.
    """
    options = options or TinkerServeOptions()
    listening = listen_for(options)
    url = url_of(listening)
    started, loops, stop = threading.Event(), list[asyncio.AbstractEventLoop](), asyncio.Event()

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        await _serve(service, options, listening, started.set, stop)

    thread = threading.Thread(target=asyncio.run, args=(main(),), name="tinker-server", daemon=True)
    thread.start()
    try:
        if not started.wait(START_DEADLINE):
            raise TimeoutError(f"The server did not start within {START_DEADLINE:g} s.")
        yield RunningServer(url, service)
    finally:
        if loops and thread.is_alive():
            loops[0].call_soon_threadsafe(stop.set)
        thread.join(START_DEADLINE)


def listen_for(options: TinkerServeOptions) -> socket.socket:
    """A bound socket. Raises ConfigError: other machines could reach a server without a key, or the port is taken."""
    check_key(options.host, options.key)
    return listen(options.host, options.port)


async def _serve(
    service: Service,
    options: TinkerServeOptions,
    listening: socket.socket,
    ready: Callable[[], None],
    stop: asyncio.Event,
) -> None:
    server = HttpServer(
        create_app(service, options.key), listening, lifespan="on", read_seconds=service.limits.read_seconds
    )

    def before_stopping() -> None:
        # Requests for pending results would be held for a while, and connections with them.
        service.futures.close()

    await serve_until(stop, server, ready, before_stopping)
