"""Waiting for a service: deadlines, a look at whether it is still there, and errors that say what to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from rllm_core.errors import BackendError, RllmError
from rllm_core.rollout.calls import call
from rllm_tinker.failures import explained

T = TypeVar("T")
BETWEEN_LOOKS = 5.0
"""Seconds of waiting after which the service is asked whether it is still there, and again, at most."""
LOOKS_IN_PATIENCE = 4
"""How many looks there are at least while a service is gone: how exactly that time is kept."""


class Health(Protocol):
    """Tells whether a service answers at all."""

    async def problem(self) -> str | None:
        """What is wrong with it just now; None: it answers.

        Raises:
            BackendError: it will never answer again.
        """
        ...


class Waiting:
    """Waits for results of one service."""

    def __init__(self, health: Health, *, patience: float, longest: float) -> None:
        """Say how long to wait.

        Args:
            health: tells whether the service answers.
            patience: seconds that a service may be gone before the wait is given up.
            longest: seconds until a wait is given up even though the service answers.
        """
        self._health = health
        self._patience = patience
        self._longest = longest
        self._pause = min(BETWEEN_LOOKS, patience / LOOKS_IN_PATIENCE, longest)
        self._look: asyncio.Task[str | None] | None = None
        self._looked_at = 0.0

    async def for_result(self, future: Any, what: str) -> Any:
        """The result of one of the client's futures.

        Raises:
            BackendError: it failed, or did not come in time.
        """
        return await self._watched(asyncio.wrap_future(future.future()), what)

    async def for_thread(self, function: Callable[[], T], what: str) -> T:
        """What a blocking function returns, in a thread of its own.

        Raises:
            BackendError: it failed, or did not come in time.
        """
        result: T = await self._watched(call(function, blocking=True), what)
        return result

    async def is_gone(self) -> bool:
        """Whether the service does not answer just now."""
        try:
            return await self._problem() is not None
        except BackendError:
            return True

    async def _watched(self, awaited: Awaitable[Any], what: str) -> Any:
        task = asyncio.ensure_future(awaited)
        started = seen = time.monotonic()
        try:
            while True:
                done, _ = await asyncio.wait({task}, timeout=self._pause)
                if done:
                    return task.result()
                problem, now = await self._problem(), time.monotonic()
                seen = now if problem is None else seen
                if problem is not None and now - seen >= self._patience:
                    raise BackendError(
                        "service-unreachable",
                        f"{what} has no answer: {problem}, for {self._patience:g} s.",
                        "Check the server, then go on from the newest checkpoint with --resume.",
                    )
                if now - started >= self._longest:
                    raise BackendError(
                        "service-unreachable",
                        f"{what} has taken {self._longest:g} s.",
                        "Raise tinker_timeout, or go on from the newest checkpoint with --resume.",
                    )
        except (RllmError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise explained(error, what) from error
        finally:
            task.cancel()

    async def _problem(self) -> str | None:
        """Hundreds of requests may be waiting at a time: one look is for all of them."""
        now = time.monotonic()
        if self._look is None or (self._look.done() and now - self._looked_at > self._pause / 2):
            self._look, self._looked_at = asyncio.ensure_future(self._health.problem()), now
        return await asyncio.shield(self._look)
