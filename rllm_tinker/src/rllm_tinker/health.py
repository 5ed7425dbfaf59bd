"""Whether a service answers: asked over plain HTTP, as the client itself would go on trying for minutes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx

from rllm_core.errors import BackendError
from rllm_tinker.seeds import ADVERTISED, MOST

HEALTH = "/api/v1/healthz"
BETWEEN_TRIES = 0.2


class HttpHealth:
    """Asks the service's health route."""

    def __init__(self, base_url: str, *, timeout: float = 5.0) -> None:
        self._base_url = base_url.rstrip("/")
        self._timeout = timeout

    async def problem(self) -> str | None:
        """What is wrong with the service just now; None: it answers."""
        return (await self._ask())[0]

    async def wait(self, patience: float) -> int:
        """Wait until the service answers; returns how many prompts it takes in one request.

        Raises:
            BackendError: it does not answer within `patience` seconds.
        """
        started = time.monotonic()
        while True:
            problem, said = await self._ask()
            if problem is None:
                prompts = said.get(ADVERTISED, 1)
                return min(prompts, MOST) if isinstance(prompts, int) and prompts > 0 else 1
            if time.monotonic() - started >= patience:
                raise BackendError(
                    f"{problem[0].upper()}{problem[1:]}.",
                    "Check tinker_base_url, start a server with `rllm tinker serve`, or set tinker_base_url=local to "
                    "have one started.",
                )
            await asyncio.sleep(BETWEEN_TRIES)

    async def _ask(self) -> tuple[str | None, dict[str, Any]]:
        try:
            async with httpx.AsyncClient(timeout=self._timeout) as client:
                response = await client.get(self._base_url + HEALTH)
            said = response.json()
        except httpx.TimeoutException:
            return f"no Tinker service answers at {self._base_url}", {}
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"no Tinker service can be reached at {self._base_url} ({type(error).__name__}: {error})", {}
        except ValueError:
            said = None
        if response.status_code >= 500:
            return f"the Tinker service at {self._base_url} is not well (status {response.status_code})", {}
        if response.status_code != 200 or not isinstance(said, dict) or said.get("status") != "ok":
            return f"what answers at {self._base_url} is no Tinker service (see {HEALTH})", {}
        return None, said
