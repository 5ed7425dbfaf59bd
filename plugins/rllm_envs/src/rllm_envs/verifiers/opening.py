"""Open an environment of verifiers, its tools and the gateway of a run, once for all rollouts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import aiohttp
import verifiers.v1 as vf
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.interception import InterceptionServer
from verifiers.v1.mcp import launch
from verifiers.v1.runtimes.subprocess import SubprocessRuntime

from rllm_core.contracts.params import NoParams
from rllm_core.contracts.workflow import OpenedRun
from rllm_core.errors import ConfigError
from rllm_envs.hosted import read_params
from rllm_envs.module_path import find_module_path
from rllm_envs.sessions import serve_gateway
from rllm_envs.verifiers.chat import ChatConfig, Post
from rllm_envs.verifiers.client import SessionsClient
from rllm_envs.verifiers.loading import load_environment
from rllm_envs.verifiers.options import NAME, VerifiersParams
from rllm_envs.verifiers.tasks import Splits
from rllm_envs.verifiers.workflow import OpenedEnvironment
from rllm_gateway.running.rollout_session import OpenedGateway

POLICY = "policy"
"""Name of the model in requests. The gateway serves one model under any name."""
NO_KEY = "RLLM_SESSION_KEY"
"""An environment variable that is never set. Each session has its own key."""


@asynccontextmanager
async def open_environment(
    run: OpenedRun, params: VerifiersParams, gateway: OpenedGateway
) -> AsyncIterator[OpenedEnvironment]:
    """Serve an environment until the context ends.

    Raises:
        ConfigError: see `load_environment` and `serve_tools`.
    """
    environment = load_environment(params, run.config.rllm.agent.max_steps)
    config = vf.EvalClientConfig(base_url="http://127.0.0.1", api_key_var=NO_KEY)
    async with (
        _open_connections() as http,
        _open_client(config, http) as client,
        serve_tools(environment, params),
    ):
        server = environment._interception
        # The server makes one client for each address. This one serves all sessions.
        server.clients[config.model_dump_json()] = client
        for seat in agent_config_fields(environment.config).values():
            if isinstance(seat.harness, ChatConfig):
                seat.harness.connect(_make_post(http, server))
        yield OpenedEnvironment(
            gateway=gateway,
            environment=environment,
            model=vf.ModelContext(model=POLICY, client=config),
            client=client,
            splits=Splits(params),
            trained=None if params.trained is None else frozenset(params.trained),
        )


@asynccontextmanager
async def open_run(run: OpenedRun, params: NoParams) -> AsyncIterator[OpenedEnvironment]:
    """Serve the environment of a run with the run's gateway, until the context ends. See `open_environment`."""
    options = read_params(run.config, NAME, VerifiersParams, "id")
    async with serve_gateway(run) as (gateway, _), open_environment(run, options, gateway) as opened:
        yield opened


@asynccontextmanager
async def _open_client(config: vf.EvalClientConfig, http: aiohttp.ClientSession) -> AsyncIterator[SessionsClient]:
    client = SessionsClient(config, http)
    try:
        yield client
    finally:
        await client.close()


def _open_connections() -> aiohttp.ClientSession:
    """Return connections that all rollouts share, without limits."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None))


def _make_post(http: aiohttp.ClientSession, server: InterceptionServer) -> Post:
    """Return a function that sends requests to the interception server."""

    async def post(path: str, key: str, body: Mapping[str, Any]) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {key}"}
        async with http.post(f"http://{server.host}:{server.port}{path}", json=body, headers=headers) as answer:
            return answer.status, await answer.read()

    return post


_start_server, _read_port = launch.serve_in_runtime, launch._read_back_port


@asynccontextmanager
async def serve_tools(environment: vf.Env, params: VerifiersParams) -> AsyncIterator[None]:
    """Serve an environment and the tools that all its rollouts share. Tools import the same modules as this process.

    Raises:
        ConfigError: the process of a tool server does not start.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(_export_module_path())
        try:
            await stack.enter_async_context(environment.serving())
        except vf.ToolsetError as error:
            first, *log = str(error).strip().splitlines()
            raise ConfigError(
                "environment-options-rejected",
                f"Environment 'verifiers:{params.id}': {first}",
                "Correct this module, and end it with if __name__ == '__main__': CLASS.run()",
                details="\n".join(log[-3:]),
            ) from error
        yield


@contextmanager
def _export_module_path() -> Iterator[None]:
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = find_module_path()
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


async def _start_named_server(server: Any, runtime: vf.Runtime, **options: Any) -> int:
    """Do what `serve_in_runtime` does. Its errors name the module."""
    try:
        port: int = await _start_server(server, runtime, **options)
    except vf.ToolsetError as error:
        raise vf.ToolsetError(f"its tool server {type(server).__module__!r} does not start.\n{error}") from error
    return port


async def _read_port_of_running(runtime: vf.Runtime, path: str) -> int:
    """Do what `_read_back_port` does, and raise an error when the process ends."""
    reading = asyncio.ensure_future(_read_port(runtime, path))
    waiting = {reading}
    if isinstance(runtime, SubprocessRuntime):
        waiting.add(asyncio.ensure_future(runtime._background[-1].wait()))
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            raise vf.ToolsetError("its process ended before it served")
        port: int = reading.result()
    finally:
        for each in waiting:
            each.cancel()
    return port


vars(launch).update(serve_in_runtime=_start_named_server, _read_back_port=_read_port_of_running)
