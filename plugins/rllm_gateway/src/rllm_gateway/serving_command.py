"""`rllm gateway serve`: a gateway that outlives runs, or one that serves a model."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import click

from rllm.cli import Request
from rllm_backend_kit.portable_renderer import load_renderer
from rllm_gateway.admin_token import TOKEN_FILE, admin_token
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


WORKFLOW = {"rllm.workflow.name": "agent"}
"""What plays: keys that agents of others act on have an effect."""


def serve_runs(store: str, host: str, port: int, run_port: int, token_file: Path | None, announce: Path | None) -> int:
    """Serve to runs that attach. Returns the exit code."""
    from rllm_gateway.serving_command import ServeOptions, serve

    file = token_file or TOKEN_FILE
    options = ServeOptions(
        store=Path(store).expanduser(),
        token=admin_token(file),
        host=host,
        port=port,
        run_port=run_port,
        announcement=announce,
    )

    def ready(url: str, for_runs: int) -> None:
        _say(f"agents: {url}; runs: port {for_runs}, with the token in {file.expanduser()}", f"store: {options.store}")

    return serve(options, ready)


def serve_model(
    request: Request,
    store: str,
    host: str,
    port: int,
    run: str,
    token_file: Path | None,
    announce: Path | None,
) -> int:
    """Serve a model to agents that open sessions. Returns the exit code."""
    from rllm.evaluation.plans import plan_to_play
    from rllm_gateway.checks import check_serving
    from rllm_gateway.deploying import DeployOptions, deploy

    # Before anything of the model is read.
    check_serving(Path(store).expanduser(), host, port)
    file = (token_file or TOKEN_FILE).expanduser()
    admin_token(file)
    play = plan_to_play(replace(request, choices={**request.choices, **WORKFLOW}))
    options = DeployOptions(
        store=str(Path(store).expanduser()),
        token_file=file,
        host=host,
        port=port,
        run=run,
        announcement=announce,
    )

    def ready(url: str) -> None:
        config = f"the config of {play.run}" if play.run else "no run's config"
        _say(
            f"serving {play.model} with {config}",
            f"sessions: POST {url}/sessions with the token in {file}, stored as run {run}",
            f"store: {options.store}",
        )

    return deploy(play.plan, options, ready)


def _say(*lines: str) -> None:
    for line in lines:
        click.echo(line)
    sys.stdout.flush()
