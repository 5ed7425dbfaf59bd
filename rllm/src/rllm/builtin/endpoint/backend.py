"""EndpointBackend: a server somewhere has the weights."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from rllm.builtin.endpoint.client import EndpointClient
from rllm.builtin.endpoint.engine import EndpointEngine
from rllm.builtin.endpoint.settings import EndpointConfig
from rllm_core.contracts.backend import Backend, RunContext, UpdatePlan, UpdateResult
from rllm_core.contracts.engine import RolloutEngine
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import ConfigError


class EndpointBackend(Backend):
    """Samples. Everything that trains is refused."""

    def __init__(self) -> None:
        self._client: EndpointClient | None = None

    async def start(self, run: RunContext) -> RolloutEngine:
        """Request the server's list of models, so that a wrong address or key fails here within seconds."""
        settings: EndpointConfig = run.backend_config
        self._client = EndpointClient(settings.endpoint)
        return EndpointEngine(self._client, await self._client.choose_model())

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        _refuse()

    async def sync_weights(self, version: int) -> None:
        _refuse()

    async def save(self, directory: Path) -> None:
        _refuse()

    async def load(self, directory: Path) -> None:
        _refuse()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


def _refuse() -> NoReturn:
    raise ConfigError(
        "backend-cannot-train",
        "The backend 'endpoint' samples from a model and cannot train it.",
        "Train with --backend local.",
    )
