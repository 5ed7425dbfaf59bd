"""Run the server on the main thread until a signal."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rllm_serving.announcement import announce
from rllm_serving.http_server import HttpServer
from rllm_serving.listening import LOOPBACK, listen, url_of
from rllm_serving.until_stopped import Stop, serve_until
from rllm_tinker_server.app import check_keys, create_app
from rllm_tinker_server.service import Service


@dataclass(frozen=True, kw_only=True)
class TinkerServeOptions:
    """Address of the server, and conditions to stop."""

    host: str = LOOPBACK
    port: int = 0
    """Port. 0 means any free port."""
    keys: tuple[str, ...] = ()
    """Keys that clients can send as X-API-Key. Without any, each key works, and only this machine can connect."""
    announce: Path | None = None
    """File to write the server's address to when it listens, for the program that started it."""
    end_with_stdin: bool = False
    """Stop when standard input is closed. This happens when the parent process dies, because it has the other end."""


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
        await serve_service(service, options, listening, announced, stop.event)
        return stop.exit_code

    return asyncio.run(main())


def listen_for(options: TinkerServeOptions) -> socket.socket:
    """A bound socket. Raises ConfigError: other machines could reach a server without a key, or the port is taken."""
    check_keys(options.host, options.keys)
    return listen(options.host, options.port)


async def serve_service(
    service: Service,
    options: TinkerServeOptions,
    listening: socket.socket,
    ready: Callable[[], None],
    stop: asyncio.Event,
) -> None:
    """Serve until `stop` is set. `ready` is called when the server answers requests."""
    server = HttpServer(
        create_app(service, options.keys), listening, lifespan="on", read_seconds=service.limits.read_seconds
    )

    def before_stopping() -> None:
        # Requests for pending results would be held for a while, and connections with them.
        service.futures.close()

    await serve_until(stop, server, ready, before_stopping)
