"""Running the server: on the main thread until a signal, or on a thread of its own inside another program."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from rllm_core.errors import ConfigError
from rllm_core.files import write_atomically
from rllm_tinker_server.app import create_app
from rllm_tinker_server.auth import check_binding
from rllm_tinker_server.service import Service

LOOPBACK = "127.0.0.1"
INTERRUPTED = 130
NOT_STARTED = 3
"""Exit code of a server that fails before it answers; uvicorn's own."""
GRACE = 5
"""Seconds that open connections have to end when the server stops."""
START_DEADLINE = 60.0
POLL = 0.01
BACKLOG = 2048


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Where to listen, and when to end."""

    host: str = LOOPBACK
    port: int = 0
    """0: any that is free."""
    key: str | None = None
    """What clients must send as X-API-Key; None: any, and only this machine can connect."""
    announce: Path | None = None
    """A file that gets ``{"url": …, "port": …, "pid": …}`` once the server listens, for a program that started it."""
    end_with_stdin: bool = False
    """End when standard input is closed: a parent holds its other end, and closes it by dying."""


@dataclass(frozen=True)
class RunningServer:
    """A server on a thread of this process."""

    url: str
    service: Service


def serve(service: Service, options: ServeOptions, listening: socket.socket, ready: Callable[[str], None]) -> int:
    """Serve until SIGTERM, SIGINT or the end of standard input, and return the exit code.

    `listening` is from `listen`; `ready` is told the URL once requests are answered. What the worker thread executes
    at the end is not waited for.
    """
    url = url_of(listening)

    def announce() -> None:
        if options.announce is not None:
            port = listening.getsockname()[1]
            write_atomically(options.announce, json.dumps({"url": url, "port": port, "pid": os.getpid()}))
        ready(url)

    async def main() -> int:
        loop, stop, code = asyncio.get_running_loop(), asyncio.Event(), 0

        def interrupt() -> None:
            nonlocal code
            code = INTERRUPTED
            stop.set()

        loop.add_signal_handler(signal.SIGTERM, stop.set)
        loop.add_signal_handler(signal.SIGINT, interrupt)
        if options.end_with_stdin:
            threading.Thread(target=_wait_for_stdin, args=(loop, stop), daemon=True).start()
        await _serve(service, options, listening, announce, stop)
        return code

    return asyncio.run(main())


@contextmanager
def running_server(service: Service, options: ServeOptions | None = None) -> Iterator[RunningServer]:
    """Serve on a thread with an event loop of its own: clients in this process may block theirs.

    Raises:
        ConfigError: the address cannot be used.
    """
    options = options or ServeOptions()
    listening = listen(options)
    started, loops, stop = threading.Event(), list[asyncio.AbstractEventLoop](), asyncio.Event()

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        await _serve(service, options, listening, started.set, stop)

    thread = threading.Thread(target=asyncio.run, args=(main(),), name="tinker-server", daemon=True)
    thread.start()
    try:
        if not started.wait(START_DEADLINE):
            raise TimeoutError(f"The server did not start within {START_DEADLINE:g} s.")
        yield RunningServer(url_of(listening), service)
    finally:
        if loops and thread.is_alive():
            loops[0].call_soon_threadsafe(stop.set)
        thread.join(START_DEADLINE)


def listen(options: ServeOptions) -> socket.socket:
    """A bound socket. Raises ConfigError: other machines could reach a server without a key, or the port is taken."""
    check_binding(options.host, options.key)
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    # asyncio sends small answers at once (TCP_NODELAY) only on sockets that say they are TCP: else each takes 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((options.host, options.port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        taken = error.errno == errno.EADDRINUSE
        why = "another program listens there" if taken else error.strerror or str(error)
        raise ConfigError(
            f"Cannot listen on {options.host} port {options.port}: {why}.",
            "Stop that program, or choose another --port (0 takes any that is free)." if taken else "Check --host.",
        ) from error
    listening.setblocking(False)
    return listening


def url_of(listening: socket.socket) -> str:
    """What clients take for base_url."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """Leaves signals to `serve`, which has exit codes to return."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(
    service: Service,
    options: ServeOptions,
    listening: socket.socket,
    ready: Callable[[], None],
    stop: asyncio.Event,
) -> None:
    config = uvicorn.Config(
        create_app(service, options.key),
        log_level="warning",
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=GRACE,
        backlog=BACKLOG,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    stopping = asyncio.create_task(stop.wait())
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(POLL)
        if server.started:
            ready()
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        # Requests for pending results would be held for a while, and connections with them.
        service.futures.close()
        server.should_exit = True
        try:
            await serving
        finally:
            listening.close()
    # uvicorn before 0.50 returns here as if somebody had stopped it.
    if not server.started and not stop.is_set():
        raise SystemExit(NOT_STARTED)


def _wait_for_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    while sys.stdin.buffer.read(1 << 16):
        pass
    loop.call_soon_threadsafe(stop.set)
