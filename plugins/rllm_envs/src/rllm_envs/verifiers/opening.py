"""Open an environment of verifiers and the gateway of a run, once for all rollouts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import verifiers.v1 as vf
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.interception import InterceptionServer

from rllm_core.contracts.workflow import OpenedRun
from rllm_envs.verifiers.chat import ChatConfig, Post
from rllm_envs.verifiers.client import SessionsClient
from rllm_envs.verifiers.loading import load_environment
from rllm_envs.verifiers.options import VerifiersParams
from rllm_envs.verifiers.tasks import Splits
from rllm_envs.verifiers.tool_servers import serve
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
        ConfigError: see `load_environment` and `serve`.
    """
    environment = load_environment(params, run.config.rllm.agent.max_steps)
    config = vf.EvalClientConfig(base_url="http://127.0.0.1", api_key_var=NO_KEY)
    async with _connections() as http, _client(config, http) as client, serve(environment, params):
        server = environment._interception
        # The server makes one client for each address. This one serves all sessions.
        server.clients[config.model_dump_json()] = client
        for seat in agent_config_fields(environment.config).values():
            if isinstance(seat.harness, ChatConfig):
                seat.harness.connect(_poster(http, server))
        yield OpenedEnvironment(
            gateway=gateway,
            environment=environment,
            model=vf.ModelContext(model=POLICY, client=config),
            client=client,
            splits=Splits(params),
            trained=None if params.trained is None else frozenset(params.trained),
        )


@asynccontextmanager
async def _client(config: vf.EvalClientConfig, http: aiohttp.ClientSession) -> AsyncIterator[SessionsClient]:
    client = SessionsClient(config, http)
    try:
        yield client
    finally:
        await client.close()


def _connections() -> aiohttp.ClientSession:
    """Return connections that all rollouts share, without limits."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None))


def _poster(http: aiohttp.ClientSession, server: InterceptionServer) -> Post:
    """Return a function that sends requests to the interception server."""

    async def post(path: str, key: str, body: Mapping[str, Any]) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {key}"}
        async with http.post(f"http://{server.host}:{server.port}{path}", json=body, headers=headers) as answer:
            return answer.status, await answer.read()

    return post
