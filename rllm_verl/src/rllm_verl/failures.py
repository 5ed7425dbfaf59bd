"""Conversion of errors from Ray and verl to one error with a remedy and the last log lines of the failed process."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ray.exceptions import RayActorError, RayError, RayTaskError

from rllm_core.errors import BackendError, RllmError
from rllm_core.notices import one_line
from rllm_verl.processes import Process, dead_daemon, log_tails

_PLACE = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_COLOR = re.compile(r"\x1b\[[\d;]*m")
_PROCESS = re.compile(r"\(pid=(?P<pid>\d+), ip=(?P<node>[^,)\s]+)")


def plain(text: str) -> str:
    """Return `text` without terminal color codes."""
    return _COLOR.sub("", text)


def place_in(traceback: str) -> str:
    """Return the last place in a traceback as ``(worker.py, line 12)``. Empty if it contains no file."""
    places = list(_PLACE.finditer(traceback))
    if not places:
        return ""
    file, line = places[-1]["file"], places[-1]["line"]
    return f"({file.rpartition('/')[2]}, line {line})"


def process_in(traceback: str) -> tuple[int, str]:
    """Return the id and address of the last process in Ray's traceback. 0 and "" if it contains no process."""
    found = list(_PROCESS.finditer(traceback))
    return (int(found[-1]["pid"]), found[-1]["node"]) if found else (0, "")


LONGEST = 500
"""Maximum number of characters of another library's message."""
RESUME = "Run the same command with --resume to continue from the newest checkpoint."


def as_backend_error(error: BaseException, doing: str, processes: Sequence[Process]) -> RllmError:
    """Return an error that describes a failure during `doing` in one paragraph.

    An rllm error from a worker is returned unchanged, because it already has a remedy.

    Args:
        error: the exception in this process.
        doing: the operation, such as "updating the policy".
        processes: the processes that may have failed.
    """
    if isinstance(error, RayTaskError):
        return _raised_in_a_process(error, doing, processes)
    if isinstance(error, RllmError):
        return error
    if isinstance(error, RayError) and (daemon := dead_daemon()) is not None:
        return ray_is_gone(daemon, doing)
    if isinstance(error, RayActorError):
        return _dead(error, doing, processes)
    details = log_tails(processes) if isinstance(error, RayError | OSError) else ""
    return BackendError(
        "worker-failed", f"While {doing}: {type(error).__name__}: {_shown(str(error))}", details=details
    )


def overdue(doing: str, seconds: float, key: str, processes: Sequence[Process]) -> BackendError:
    """Return the error for an operation that exceeded its time limit."""
    return BackendError(
        "process-timeout",
        f"While {doing}: no answer within {seconds:g} seconds (`{key}`).",
        f"If the operation needs more time, raise {key}. Otherwise read the logs. {RESUME}",
        log_tails(processes),
    )


def ray_is_gone(daemon: str, doing: str) -> BackendError:
    """Return the error for a Ray process that ended. `daemon` is its name from `dead_daemon`."""
    return BackendError(
        "process-died",
        f"While {doing}: Ray stopped, because its {daemon} ended.",
        f"The system may have killed it because memory ran out: check `dmesg`. {RESUME}",
    )


def _raised_in_a_process(error: RayTaskError, doing: str, processes: Sequence[Process]) -> RllmError:
    cause: BaseException = error
    # A process that calls a second process raises the second process's error.
    while isinstance(cause, RayTaskError):
        cause = cause.cause
    if isinstance(cause, RllmError):
        return cause
    if isinstance(cause, RayActorError):
        return _dead(cause, doing, processes)
    # Ray raises an object with the cause's class that contains only the traceback's text.
    text = plain(str(error))
    process, where = _origin(text, processes), place_in(text)
    what = f"While {doing}: {process.name} raised {type(cause).__name__}: {_shown(str(cause))} {where}".rstrip()
    return BackendError("worker-failed", f"{what}.", "Add --debug to see the traceback.", log_tails([process]))


def _dead(error: RayActorError, doing: str, processes: Sequence[Process]) -> BackendError:
    """Return the error for a process that died or could not start."""
    if error.actor_init_failed:
        text = plain(str(error))
        process = _origin(text, processes)
        why = _shown("".join(text.strip().splitlines()[-1:]))
        return BackendError(
            "process-not-started",
            f"While {doing}: {process.name} could not start: {why}.",
            details=log_tails([process]),
        )
    dead = [process for process in processes if process.actor_id and process.actor_id == str(error.actor_id or "")]
    names = ", ".join(f"{process.name} (process {process.pid} on {process.node})" for process in dead)
    return BackendError(
        "process-died",
        f"While {doing}: {names or 'a process of the run'} died.",
        "Read its log for the cause. If the log shows none, check `dmesg`: the system may have killed it because "
        f"memory ran out. {RESUME}",
        log_tails(dead or processes),
    )


def _origin(traceback: str, processes: Sequence[Process]) -> Process:
    """Return the process that raised first, according to the text of Ray's error."""
    pid, node = process_in(traceback)
    known = (process for process in processes if (process.pid, process.node) == (pid, node))
    return next(known, Process(f"process {pid}", pid, node, ""))


def _shown(text: str) -> str:
    return one_line(text, LONGEST) or "no message"
