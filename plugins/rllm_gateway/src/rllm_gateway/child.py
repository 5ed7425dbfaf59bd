"""The gateway in a process of its own, started by a trainer: ``python -m rllm_gateway.child SETTINGS``."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rllm_core.errors import ConfigError, RllmError
from rllm_serving.announcement import announce
from rllm_serving.http_server import HttpServer
from rllm_serving.listening import listen, url_of
from rllm_serving.until_stopped import Stop, serve_until

DEFAULT_PORT = 4000
"""Where it is taken, and nobody asked for it, any other will do."""


@dataclass(frozen=True, kw_only=True)
class ChildSettings:
    """What the trainer tells its gateway on the command line. No secrets."""

    descriptor: int
    """Of the gateway's end of the link."""
    renderer: str
    """The folder of the renderer."""
    store: str
    """The file of the store."""
    host: str
    port: int
    announcement: str
    """The file that says where it listens."""
    model: str
    """Name of the model, for clients."""
    deployment: Mapping[str, Any] | None = None
    """Fields of a `Deployment`; None: the trainer opens all sessions."""

    def as_argument(self) -> str:
        return json.dumps(asdict(self))


async def serve(settings: ChildSettings) -> int:
    """Serve until the trainer hangs up or ends. Returns the exit code."""
    from rllm_backend_kit.portable_renderer import load_renderer, tokenizer_digest
    from rllm_gateway.admin_token import admin_token
    from rllm_gateway.app import create_app
    from rllm_gateway.calls import CallStore
    from rllm_gateway.deployment import DeployedSessions, Deployment
    from rllm_gateway.gateway import Gateway
    from rllm_gateway.link_policy import AttachedPolicy, LinkPolicy

    stop = Stop()
    stop.set_with_parent()
    renderer = load_renderer(Path(settings.renderer))
    listen_at = listening_socket if settings.deployment is None else listen
    listening = listen_at(settings.host, settings.port)
    store = Path(settings.store)
    # A training run removes the run that it replaces, with its store, before its first step.
    gateway = Gateway(store if settings.deployment is None else CallStore.open(store), url_of(listening))
    link = socket.socket(fileno=settings.descriptor)
    link.setblocking(False)
    policy = LinkPolicy(*await asyncio.open_connection(sock=link), gateway)
    tokenizer = tokenizer_digest(renderer)
    gateway.attach(AttachedPolicy(policy=policy, renderer=renderer, model=settings.model, tokenizer=tokenizer))

    async def linked() -> None:
        await policy.serve()
        stop.event.set()

    linking = asyncio.create_task(linked())
    deployed = None
    if settings.deployment is not None:
        deployment = Deployment(**settings.deployment)
        token = admin_token(Path(deployment.token_file))
        deployed = DeployedSessions(gateway, token, deployment.spec, policy.end_session)
    server = HttpServer(create_app(gateway, deployed), listening)
    try:
        await serve_until(stop.event, server, lambda: announce(Path(settings.announcement), listening), gateway.detach)
    finally:
        if deployed is not None:
            await deployed.end_all()
        linking.cancel()
        gateway.close()
    return stop.exit_code


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket at this port; at any, where it is the default one and taken.

    Raises:
        ConfigError: the port is taken.
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
        sys.stderr.write(f"{error.message}\n")  # the trainer shows it, and says which keys to change
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
