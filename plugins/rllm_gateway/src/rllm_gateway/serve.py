"""A gateway that outlives runs, on the main thread until a signal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rllm_backend_kit.portable_renderer import load_renderer
from rllm_gateway.app import create_app
from rllm_gateway.attaching import Door
from rllm_gateway.calls import CallStore
from rllm_gateway.gateway import Gateway
from rllm_serving.announcement import announce
from rllm_serving.http_server import HttpServer
from rllm_serving.listening import LOOPBACK, listen, reachable, url_of
from rllm_serving.until_stopped import Stop, serve_until


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Where to listen and to store."""

    store: Path
    token: str
    """What runs attach with."""
    host: str = LOOPBACK
    port: int = 0
    """For agents; 0: any that is free."""
    run_port: int = 0
    """For runs, on this machine alone; 0: any that is free."""
    announcement: Path | None = None


def serve(options: ServeOptions, ready: Callable[[str, int], None]) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code.

    `ready` is told the URL for agents and the port for runs, once requests are answered.

    Raises:
        ConfigError: a port is taken.
        StoreError: the store cannot be opened.
    """
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(options, ready))


async def _serve(options: ServeOptions, ready: Callable[[str, int], None]) -> int:
    stop = Stop()
    listening, for_runs = listen(options.host, options.port), listen(LOOPBACK, options.run_port)
    gateway = Gateway(CallStore.open(options.store), url_of(listening))
    doors = set[asyncio.Task[None]]()
    door = Door(gateway, options.token, load_renderer)

    async def enter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        doors.add(task)
        task.add_done_callback(doors.discard)
        await door.enter(reader, writer)

    runs = await asyncio.start_server(enter, sock=for_runs)

    def announced() -> None:
        if options.announcement is not None:
            announce(options.announcement, listening)
        ready(reachable(gateway.url), for_runs.getsockname()[1])

    try:
        await serve_until(stop.event, HttpServer(create_app(gateway), listening), announced, gateway.detach)
    finally:
        runs.close()
        for task in doors:
            task.cancel()
        await asyncio.gather(*doors, return_exceptions=True)
        gateway.close()
    return stop.exit_code
