"""Conversion of the client's exceptions to rllm errors with a remedy.

The exceptions are recognized by their attributes, so this module does not import the client.
"""

from __future__ import annotations

import re

from rllm_core.errors import BackendError

AROUND = re.compile(r"^Request failed: | for self\.request_id=.*$", re.DOTALL)
"""Text that the client adds around the service's message about a failed request."""
RESUME = "Run the same command with --resume to continue from the newest checkpoint."


def explained(error: BaseException, what: str) -> BackendError:
    """Return an rllm error with a remedy. `what` describes the failed operation."""
    status = getattr(error, "status_code", None)
    said = _read_reason(error)
    match status:
        case 401 | 403:
            return BackendError(
                "bad-api-key",
                f"{what}: the service does not accept the API key ({status}): {said}.",
                "Set TINKER_API_KEY to a key of that service.",
            )
        case 402:
            return BackendError(
                "service-needs-payment",
                f"{what}: the service requires payment ({status}): {said}.",
                f"Pay in the service's console. {RESUME}",
            )
        case 404:
            return BackendError(
                "service-rejected-request",
                f"{what}: the service did not find it ({status}): {said}.",
                "Check tinker_base_url, and the names of models and checkpoints in the configuration.",
            )
        case 410:
            return BackendError(
                "service-lost-state", f"{what}: the service no longer has it ({status}): {said}.", RESUME
            )
        case 429:
            return BackendError(
                "service-rate-limit",
                f"{what}: the service's rate limit is reached ({status}): {said}.",
                "Wait, lower rllm.workflow.n_parallel_tasks, then run the same command with --resume.",
            )
        case int() if status >= 500:
            return BackendError("service-failed", f"{what}: the service failed ({status}): {said}.", RESUME)
        case int():
            return BackendError(
                "service-rejected-request",
                f"{what}: the service rejected the request ({status}): {said}.",
                "Change the setting that the service's message names, then run the same command with --resume.",
            )
    category = str(getattr(error, "category", ""))
    if category.endswith("user"):
        return BackendError(
            "service-rejected-request",
            f"{what}: the service rejected the request: {said}.",
            "Change the setting that the service's message names, then run the same command with --resume.",
        )
    if category:
        return BackendError("service-failed", f"{what}: the service failed: {said}.", RESUME)
    if "expired/broken" in said:
        return BackendError(
            "service-lost-state", f"{what}: the service has lost it, for example by a restart: {said}.", RESUME
        )
    return BackendError("service-failed", f"{what} failed: {type(error).__name__}: {said}.", RESUME)


def _read_reason(error: BaseException) -> str:
    """Return the service's own message in one line, without the text that the client adds."""
    body = getattr(error, "body", None)
    detail = body.get("detail") if isinstance(body, dict) else None
    words = detail if isinstance(detail, str) else AROUND.sub("", str(error))
    return " ".join(words.split())[:600].rstrip(". ") or "it gave no reason"
