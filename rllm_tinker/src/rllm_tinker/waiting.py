"""Waits for a service's results, with time limits, health checks, and errors with a remedy."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from rllm_core.errors import BackendError, RllmError
from rllm_core.rollout.calls import call

T = TypeVar("T")
BETWEEN_LOOKS = 5.0
"""Maximum seconds between two health checks while rllm waits for a result."""
LOOKS_IN_PATIENCE = 4
"""Minimum number of health checks before an unreachable service is an error. It sets how exact that time limit is."""


class Health(Protocol):
    """A health check for a service."""

    async def problem(self) -> str | None:
        """Return the service's current problem. None if it answers.

        Raises:
            BackendError: the service can never answer again.
        """
        ...


class Waiting:
    """Waits for the results of one service."""

    def __init__(self, health: Health, *, patience: float, longest: float) -> None:
        """Set the time limits.

        Args:
            health: the service's health check.
            patience: seconds without an answer from the service after which the wait fails.
            longest: seconds after which the wait fails even if the service answers.
        """
        self._health = health
        self._patience = patience
        self._longest = longest
        self._pause = min(BETWEEN_LOOKS, patience / LOOKS_IN_PATIENCE, longest)
        self._look: asyncio.Task[str | None] | None = None
        self._looked_at = 0.0

    async def for_result(self, future: Any, what: str) -> Any:
        """Return the result of one of the client's futures.

        Raises:
            BackendError: the request failed or exceeded a time limit.
        """
        return await self._watch(asyncio.wrap_future(future.future()), what)

    async def for_thread(self, function: Callable[[], T], what: str) -> T:
        """Run a blocking function in its own thread and return its result.

        Raises:
            BackendError: the function failed or exceeded a time limit.
        """
        result: T = await self._watch(call(function, blocking=True), what)
        return result

    async def is_gone(self) -> bool:
        """Return True if the service does not answer now."""
        try:
            return await self._problem() is not None
        except BackendError:
            return True

    async def _watch(self, awaited: Awaitable[Any], what: str) -> Any:
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
                        f"{what} got no answer for {self._patience:g} s: {problem}.",
                        "Check the server, then run the same command with --resume to continue from the newest "
                        "checkpoint.",
                    )
                if now - started >= self._longest:
                    raise BackendError(
                        "service-unreachable",
                        f"{what} took longer than {self._longest:g} s (tinker_timeout).",
                        "Raise tinker_timeout, then run the same command with --resume to continue from the newest "
                        "checkpoint.",
                    )
        except (RllmError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise explain_failure(error, what) from error
        finally:
            task.cancel()

    async def _problem(self) -> str | None:
        """Return the result of a health check. All waiting requests share one check, because there can be hundreds."""
        now = time.monotonic()
        if self._look is None or (self._look.done() and now - self._looked_at > self._pause / 2):
            self._look, self._looked_at = asyncio.ensure_future(self._health.problem()), now
        return await asyncio.shield(self._look)


AROUND = re.compile(r"^Request failed: | for self\.request_id=.*$", re.DOTALL)
"""Text that the client adds around the service's message about a failed request."""
RESUME = "Run the same command with --resume to continue from the newest checkpoint."


def explain_failure(error: BaseException, what: str) -> BackendError:
    """Return an rllm error with a remedy. `what` describes the failed operation."""
    status = getattr(error, "status_code", None)
    reason = _read_reason(error)
    match status:
        case 401 | 403:
            return BackendError(
                "bad-api-key",
                f"{what}: the service does not accept the API key ({status}): {reason}.",
                "Set TINKER_API_KEY to a key of that service.",
            )
        case 402:
            return BackendError(
                "service-needs-payment",
                f"{what}: the service requires payment ({status}): {reason}.",
                f"Pay in the service's console. {RESUME}",
            )
        case 404:
            return BackendError(
                "service-rejected-request",
                f"{what}: the service did not find it ({status}): {reason}.",
                "Check tinker_base_url, and the names of models and checkpoints in the configuration.",
            )
        case 410:
            return BackendError(
                "service-lost-state", f"{what}: the service no longer has it ({status}): {reason}.", RESUME
            )
        case 429:
            return BackendError(
                "service-rate-limit",
                f"{what}: the service's rate limit is reached ({status}): {reason}.",
                "Wait, lower rllm.workflow.n_parallel_tasks, then run the same command with --resume.",
            )
        case int() if status >= 500:
            return BackendError("service-failed", f"{what}: the service failed ({status}): {reason}.", RESUME)
        case int():
            return BackendError(
                "service-rejected-request",
                f"{what}: the service rejected the request ({status}): {reason}.",
                "Change the setting that the service's message names, then run the same command with --resume.",
            )
    category = str(getattr(error, "category", ""))
    if category.endswith("user"):
        return BackendError(
            "service-rejected-request",
            f"{what}: the service rejected the request: {reason}.",
            "Change the setting that the service's message names, then run the same command with --resume.",
        )
    if category:
        return BackendError("service-failed", f"{what}: the service failed: {reason}.", RESUME)
    if "expired/broken" in reason:
        return BackendError(
            "service-lost-state", f"{what}: the service has lost it, for example by a restart: {reason}.", RESUME
        )
    return BackendError("service-failed", f"{what} failed: {type(error).__name__}: {reason}.", RESUME)


def _read_reason(error: BaseException) -> str:
    """Return the service's own message in one line, without the text that the client adds."""
    body = getattr(error, "body", None)
    detail = body.get("detail") if isinstance(body, dict) else None
    words = detail if isinstance(detail, str) else AROUND.sub("", str(error))
    return " ".join(words.split())[:600].rstrip(". ") or "it gave no reason"
