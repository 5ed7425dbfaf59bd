"""The gateway's process, which a trainer starts: ``python -m rllm_gateway.serving.child SETTINGS``."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rllm_core.errors import ConfigError, RllmError
from rllm_serving.http_server import HttpServer, Stop, serve_until
from rllm_serving.listening import announce, listen, url_of

DEFAULT_PORT = 4000
"""Default port. If it is in use, the gateway uses any free port instead."""


@dataclass(frozen=True, kw_only=True)
class ChildSettings:
    """Settings of the gateway's process. They are passed on the command line, so they must not contain secrets."""

    descriptor: int
    """File descriptor of the gateway's end of the link."""
    renderer: str
    """Directory of the renderer."""
    store: str
    """File of the store."""
    host: str
    port: int
    announcement: str
    """File to write the URL to."""
    model: str
    """Name of the model, for clients."""

    def as_argument(self) -> str:
        return json.dumps(asdict(self))


async def serve(settings: ChildSettings) -> int:
    """Serve until the trainer disconnects or dies. Return the exit code."""
    from rllm_backend_kit.portable_renderer import load_renderer
    from rllm_gateway.serving.app import create_app
    from rllm_gateway.serving.gateway import Gateway
    from rllm_gateway.sessions.link import AttachedPolicy, LinkPolicy

    stop = Stop()
    stop.set_with_parent()
    renderer = load_renderer(Path(settings.renderer))
    listening = listening_socket(settings.host, settings.port)
    # Pass a path, because a run removes the run that it replaces, with its store, before its first step.
    gateway = Gateway(Path(settings.store), url_of(listening))
    link = socket.socket(fileno=settings.descriptor)
    link.setblocking(False)
    policy = LinkPolicy(*await asyncio.open_connection(sock=link), gateway)
    gateway.attach(AttachedPolicy(policy=policy, renderer=renderer, model=settings.model))

    async def serve_policy() -> None:
        await policy.serve()
        stop.event.set()

    linking = asyncio.create_task(serve_policy())
    server = HttpServer(create_app(gateway), listening)
    try:
        await serve_until(stop.event, server, lambda: announce(Path(settings.announcement), listening), gateway.detach)
    finally:
        linking.cancel()
        gateway.close()
    return stop.exit_code


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens at a port. If the default port is in use, it listens at any free port.

    Raises:
        ConfigError: the port is in use, and is not the default port.
    """
    try:
        return listen(host, port)
    except ConfigError:
        if port != DEFAULT_PORT:
            raise
        return listen(host, 0)


def main(settings: str) -> int:
    import uvloop

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(ChildSettings(**json.loads(settings))))
    except RllmError as error:
        sys.stderr.write(f"{error.message}\n")  # the trainer prints it, with the keys to change
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
