"""A run's gateway on the test's event loop, for engines whose renderer no other process can load."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rllm_core.contracts.workflow import OpenedRun
from rllm_gateway.calls import CallStore
from rllm_gateway.running.rollout_session import OpenedGateway
from rllm_gateway.running.runners import CommandRunner, FunctionRunner
from rllm_gateway.running.target import target_of
from rllm_gateway.running.workflow import AgentParams, NoCallWarning, OpenedAgent
from rllm_gateway.sampling.link_trainer import TrainerLink
from rllm_gateway.serving.app import create_app
from rllm_gateway.serving.gateway import Gateway
from rllm_gateway.sessions.link import AttachedPolicy, LinkPolicy
from rllm_serving.http_server import HttpServer
from rllm_serving.listening import listen, url_of


@asynccontextmanager
async def opened_here(run: OpenedRun, params: AgentParams) -> AsyncIterator[OpenedAgent]:
    """The result of `WorkflowPlugin.open` of the workflow `agent`."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        runner: Any = (
            CommandRunner(params.command or [], directory)
            if params.agent is None
            else FunctionRunner(target_of(params.agent), directory)
        )
        async with open_gateway_here(run, directory) as gateway:
            try:
                yield OpenedAgent(gateway=gateway, runner=runner, no_call_warning=NoCallWarning(1))
            finally:
                await runner.close()


@asynccontextmanager
async def open_gateway_here(run: OpenedRun, directory: Path) -> AsyncIterator[OpenedGateway]:
    """Open a gateway as `rllm_gateway.serving.opening.open_gateway` does, on this event loop."""
    async with _linked(run, directory / "calls.db") as link:
        yield OpenedGateway(
            link=link, run="run", processing=run.config.rllm.sdk.processing, engine_stops=run.stop_texts
        )


@asynccontextmanager
async def _linked(run: OpenedRun, path: Path) -> AsyncIterator[TrainerLink]:
    store, listening = CallStore.open(path), listen()
    gateway = Gateway(store, url_of(listening))
    ours, theirs = socket.socketpair()
    policy = LinkPolicy(*await asyncio.open_connection(sock=theirs), gateway)
    gateway.attach(AttachedPolicy(policy=policy, renderer=run.engine.renderer, model="policy"))
    server = HttpServer(create_app(gateway), listening)
    await server.start()
    serving = asyncio.create_task(policy.serve())
    link = TrainerLink(*await asyncio.open_connection(sock=ours))
    try:
        yield link
    finally:
        await link.close()
        await serving
        await server.stop()
        gateway.flush()
        store.close()
