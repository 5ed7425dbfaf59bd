"""The gateway of a run on the event loop of the test, for engines whose renderer no other process can load."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rllm_core.contracts.workflow import OpenedRun
from rllm_gateway.app import create_app
from rllm_gateway.calls import CallStore
from rllm_gateway.gateway import Gateway
from rllm_gateway.link import AttachedPolicy, LinkPolicy
from rllm_gateway.link_trainer import TrainerLink
from rllm_gateway.plugin import AgentParams
from rllm_gateway.running.runners import CommandRunner, FunctionRunner
from rllm_gateway.running.target import target_of
from rllm_gateway.workflow import OpenedGateway, Silence
from rllm_serving.http_server import HttpServer
from rllm_serving.listening import listen, url_of


@asynccontextmanager
async def opened_here(run: OpenedRun, params: AgentParams) -> AsyncIterator[OpenedGateway]:
    """What `WorkflowPlugin.open` of the workflow `agent` gives."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        runner: Any = (
            CommandRunner(params.command or [], directory)
            if params.agent is None
            else FunctionRunner(target_of(params.agent), directory)
        )
        async with _linked(run, directory / "calls.db") as link:
            try:
                yield OpenedGateway(
                    link=link,
                    runner=runner,
                    run="run",
                    processing=run.config.rllm.sdk.processing,
                    silence=Silence(1),
                    engine_stops=run.stop_texts,
                )
            finally:
                await runner.close()


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
