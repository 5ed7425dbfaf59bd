"""Time limits for requests to a process, after which the process counts as hanging."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
PARTS = 20


@dataclass
class Patience:
    """Limits that grow with the time that requests of the same name have taken."""

    first: float = 3600.0
    """Limit in seconds for the first request of a name. No earlier time exists, and it may download a model."""
    least: float = 600.0
    """Minimum limit in seconds for later requests."""
    times: float = 20.0
    """Multiple of the slowest request so far."""
    _slowest: dict[str, float] = field(default_factory=dict)
    """Seconds of the slowest answer, by name."""

    def limit(self, name: str) -> float:
        """Return the seconds that the next request of this name may take."""
        return max(self.least, self.times * self._slowest[name]) if name in self._slowest else self.first

    async def wait_for(self, name: str, answer: Awaitable[T]) -> T:
        """Wait for the answer to a request.

        Raises:
            TimeoutError: the limit has passed.
        """
        limit, task = self.limit(name), asyncio.ensure_future(answer)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            # If this process was itself stopped, only one part is late. It then still waits for the other parts.
            for _ in range(PARTS):
                if (await asyncio.wait([task], timeout=limit / PARTS))[0]:
                    value = task.result()
                    self._slowest[name] = max(self._slowest.get(name, 0.0), loop.time() - begun)
                    return value
            raise TimeoutError
        finally:
            task.cancel()
