"""Health checks of a service over plain HTTP. The client is not used for them, because it retries for minutes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from rllm_core.contracts.engine import Dtype
from rllm_core.errors import BackendError
from rllm_serving.tinker_additions import MAX_SEEDS, MODEL_KEY, PROMPTS_KEY

HEALTH = "/api/v1/healthz"
BETWEEN_TRIES = 0.2
NOT_FOR_US = (401, 403, 408, 429)
"""Status codes of a service that runs but does not report its health. A bad API key fails in a later request."""
LONGEST_LOOK = 5.0
"""Maximum time limit in seconds for one health check."""
SHORTEST_LOOK = 0.2
REFUSED = 5.0
"""Seconds at the start of a run during which the service may refuse connections."""


@dataclass(frozen=True, slots=True)
class _Look:
    """The result of one health check."""

    problem: str | None
    answer: dict[str, Any] = field(default_factory=dict)
    refused: bool = False
    """True if the connection was refused. That can change only if a server is just starting."""
    is_other_server: bool = False
    """True if a web server answers that is not a Tinker service, so that waiting cannot help."""


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """Base model of a server that can compare tensors (`rllm_serving.tinker_additions`)."""

    layers: int
    vocabulary: int
    dtype: Dtype


@dataclass(frozen=True, kw_only=True)
class ServerAbilities:
    """Abilities of a server beyond the Tinker API."""

    prompts_per_request: int = 1
    """Number of prompts that the server accepts in one request."""
    model: ServedModel | None = None
    """None if the server cannot compare tensors."""

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> ServerAbilities:
        """Read them from the health route's response."""
        prompts, model = answer.get(PROMPTS_KEY, 1), answer.get(MODEL_KEY)
        return cls(
            prompts_per_request=min(prompts, MAX_SEEDS) if isinstance(prompts, int) and prompts > 0 else 1,
            model=ServedModel(layers=model["layers"], vocabulary=model["vocabulary"], dtype=model["dtype"])
            if isinstance(model, dict)
            else None,
        )


class HttpHealth:
    """Health checks through the service's health route."""

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = {} if api_key is None else {"X-API-Key": api_key}

    async def problem(self) -> str | None:
        """Return the service's current problem. None if it answers, even with an unexpected status."""
        look = await self._ask(LONGEST_LOOK)
        return None if look.is_other_server else look.problem

    async def wait(self, patience: float) -> ServerAbilities:
        """Wait until the service answers.

        Raises:
            BackendError: the service does not answer within `patience` seconds, or the server is not a Tinker service.
        """
        started = time.monotonic()
        while True:
            look = await self._ask(min(LONGEST_LOOK, max(patience - (time.monotonic() - started), SHORTEST_LOOK)))
            if look.problem is None:
                return ServerAbilities.read(look.answer)
            limit = min(REFUSED, patience) if look.refused else patience
            if look.is_other_server or time.monotonic() - started >= limit:
                raise BackendError(
                    "service-unreachable",
                    f"{look.problem[0].upper()}{look.problem[1:]}.",
                    "Check tinker_base_url, start a server with `rllm tinker serve`, or set tinker_base_url=local to "
                    "let the run start a server.",
                )
            await asyncio.sleep(BETWEEN_TRIES)

    async def _ask(self, seconds: float) -> _Look:
        where = self._base_url
        try:
            async with httpx.AsyncClient(timeout=seconds) as client:
                response = await client.get(where + HEALTH, headers=self._headers)
            answer = response.json()
        except httpx.TimeoutException:
            return _Look(f"no Tinker service answers at {where} within {seconds:.3g} s")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            problem = f"no Tinker service can be reached at {where} ({type(error).__name__}: {error})"
            return _Look(problem, refused=isinstance(error, httpx.ConnectError))
        except ValueError:
            answer = None
        status = response.status_code
        if status in NOT_FOR_US:
            return _Look(None)
        if status >= 500:
            return _Look(f"the Tinker service at {where} reports a failure (status {status})")
        if status != 200 or not isinstance(answer, dict) or answer.get("status") != "ok":
            problem = f"the server at {where} is not a Tinker service ({HEALTH} has status {status})"
            return _Look(problem, is_other_server=True)
        return _Look(None, answer)
