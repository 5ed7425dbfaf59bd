"""From what Ray and verl raise to one error a user can act on, with the end of the log of the process that failed."""

from __future__ import annotations

from collections.abc import Sequence

from ray.exceptions import RayActorError, RayError, RayTaskError

from rllm_core.errors import BackendError, RllmError
from rllm_verl.processes import Process, log_tails


def as_backend_error(error: BaseException, doing: str, processes: Sequence[Process]) -> RllmError:
    """What happened while `doing`, in a paragraph.

    An error of ours that was raised in a worker comes back as it is: it says what is wrong by itself.

    Args:
        error: what was raised here.
        doing: such as "updating the policy".
        processes: those that may have failed.
    """
    cause = _own_error(error)
    if cause is not None:
        return cause
    if isinstance(error, RayActorError):
        dead = [process for process in processes if process.actor_id == _actor_id(error)] or list(processes)
        names = ", ".join(f"{process.name} (process {process.pid} on {process.node})" for process in dead)
        return BackendError(
            f"While {doing}: {names or 'a process'} died.{log_tails(dead)}",
            "Its log says why, or the system's: a process killed for memory leaves no word. Go on from the newest "
            "checkpoint with --resume.",
        )
    if isinstance(error, RayTaskError):
        what = error.cause if isinstance(error.cause, BaseException) else error
        return BackendError(
            f"While {doing}: {type(what).__name__}: {_last_line(str(what))}",
            "Add --debug for the worker's own traceback.",
        )
    if isinstance(error, RayError | OSError):
        return BackendError(f"While {doing}: {type(error).__name__}: {_last_line(str(error))}{log_tails(processes)}")
    return BackendError(f"While {doing}: {type(error).__name__}: {_last_line(str(error))}")


def overdue(doing: str, seconds: float, key: str, processes: Sequence[Process]) -> BackendError:
    """Something did not end within its deadline."""
    return BackendError(
        f"While {doing}: no answer within {seconds:g} seconds (`{key}`).{log_tails(processes)}",
        f"If it only needs longer, raise {key}; else look at the logs. Go on from the newest checkpoint with --resume.",
    )


def _own_error(error: BaseException) -> RllmError | None:
    # Ray raises something that is both its own error and of the class of the cause, with nothing but text in it.
    if isinstance(error, RayTaskError):
        error = error.cause
    return error if isinstance(error, RllmError) else None


def _actor_id(error: RayActorError) -> str:
    return str(error.actor_id or "")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else "no message")[:500]
