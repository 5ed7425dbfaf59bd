"""`rllm gateway serve`: a gateway that outlives runs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from rllm_backend_kit.portable_renderer import load_renderer
from rllm_gateway.calls import CallStore
from rllm_gateway.serving.app import create_app
from rllm_gateway.serving.attaching import TOKEN_FILE, RunSocket, admin_token
from rllm_gateway.serving.gateway import Gateway
from rllm_serving.http_server import HttpServer, Stop, serve_until
from rllm_serving.listening import LOOPBACK, announce, listen, reachable_url, url_of


async def _serve(store: Path, host: str, port: int, run_port: int, token_file: Path, announcement: Path | None) -> int:
    token = admin_token(token_file)
    stop = Stop()
    listening, for_runs = listen(host, port), listen(LOOPBACK, run_port)
    gateway = Gateway(CallStore.open(store), url_of(listening))
    connections = set[asyncio.Task[None]]()
    run_socket = RunSocket(gateway, token, load_renderer)

    async def enter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        task.add_done_callback(connections.discard)
        await run_socket.enter(reader, writer)

    runs = await asyncio.start_server(enter, sock=for_runs)

    def announce_start() -> None:
        if announcement is not None:
            announce(announcement, listening)
        run_port = for_runs.getsockname()[1]
        _say(
            f"agents: {reachable_url(gateway.url)}; runs: port {run_port}, with the token in {token_file}",
            f"store: {store}",
        )

    try:
        await serve_until(stop.event, HttpServer(create_app(gateway), listening), announce_start, gateway.detach)
    finally:
        runs.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        gateway.close()
    return stop.exit_code


def serve_runs(store: str, host: str, port: int, run_port: int, token_file: Path | None, announce: Path | None) -> int:
    """Serve runs that attach, until SIGTERM or SIGINT. Return the exit code.

    Raises:
        ConfigError: a port is in use.
        StoreError: the store cannot be opened.
    """
    import uvloop

    file = (token_file or TOKEN_FILE).expanduser()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(Path(store).expanduser(), host, port, run_port, file, announce))


def _say(*lines: str) -> None:
    for line in lines:
        click.echo(line)
    sys.stdout.flush()
