"""What the client raises, as errors of ours that say what to do. Known by what they carry: nothing here imports it."""

from __future__ import annotations

import re

from rllm_core.errors import BackendError

AROUND = re.compile(r"^Request failed: | for self\.request_id=.*$", re.DOTALL)
"""What the client adds to what a service says of a request that failed."""
RESUME = "Go on from the newest checkpoint with --resume."


def explained(error: BaseException, what: str) -> BackendError:
    """An error for people; `what` says what was being done."""
    status = getattr(error, "status_code", None)
    said = _said(error)
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
                f"{what}: the service asks for payment ({status}): {said}.",
                f"Pay there. {RESUME}",
            )
        case 404:
            return BackendError(
                "service-rejected-request",
                f"{what}: the service does not know it ({status}): {said}.",
                "Check tinker_base_url and the names in the configuration.",
            )
        case 410:
            return BackendError(
                "service-lost-state", f"{what}: the service no longer has it ({status}): {said}.", RESUME
            )
        case 429:
            return BackendError(
                "service-rate-limit",
                f"{what}: the service limits how much may be asked of it ({status}): {said}.",
                "Wait, lower rllm.workflow.n_parallel_tasks, and go on with --resume.",
            )
        case int() if status >= 500:
            return BackendError("service-failed", f"{what}: the service failed ({status}): {said}.", RESUME)
        case int():
            return BackendError(
                "service-rejected-request",
                f"{what}: the service refused it ({status}): {said}.",
                "Change the setting that the service names, then run the same command with --resume.",
            )
    category = str(getattr(error, "category", ""))
    if category.endswith("user"):
        return BackendError(
            "service-rejected-request",
            f"{what}: the service refused it: {said}.",
            "Change the setting that the service names, then run the same command with --resume.",
        )
    if category:
        return BackendError("service-failed", f"{what}: the service failed: {said}.", RESUME)
    if "expired/broken" in said:
        return BackendError(
            "service-lost-state", f"{what}: the service has lost it, as after a restart: {said}.", RESUME
        )
    return BackendError("service-failed", f"{what} failed: {type(error).__name__}: {said}.", RESUME)


def _said(error: BaseException) -> str:
    """The service's own words, in one line: without those that the client puts around them."""
    body = getattr(error, "body", None)
    detail = body.get("detail") if isinstance(body, dict) else None
    words = detail if isinstance(detail, str) else AROUND.sub("", str(error))
    return " ".join(words.split())[:600].rstrip(". ") or "it gave no reason"
