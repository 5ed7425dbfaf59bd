"""From what Ray and verl raise to one error a user can act on, with the end of the log of the process that failed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ray.exceptions import RayActorError, RayError, RayTaskError

from rllm_core.errors import BackendError, RllmError
from rllm_core.notices import one_line
from rllm_verl.processes import Process, dead_daemon, log_lines, log_tails

_PREFIX = r"(?:\([^)]*\) ?)?(?:[A-Z]+ [-\d]+ [:.,\d]+ \[[^\]]*\] ?)?"
"""What vLLM writes before each line: ``(EngineCore pid=7) ERROR 10-31 12:00:00 [core.py:718]``."""
_EXCEPTION = re.compile(rf"^{_PREFIX}(?P<error>(?:\w+\.)*\w*(?:Error|Exception)(?::\s.*)?)$")
_PLACE = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_PROCESS = re.compile(r"\(pid=(?P<pid>\d+), ip=(?P<node>[^,)\s]+)")
_ELSEWHERE = re.compile(r"\b(?:see|check)\b.*\b(?:above|below|logs?)\b", re.IGNORECASE)


def plain(text: str) -> str:
    """`text` without the colours of terminals."""
    return _COLOUR.sub("", text)


def points_elsewhere(text: str) -> bool:
    """Whether an error only says where its cause is told. vLLM: "See stack trace (above) for the root cause"."""
    return not text.strip() or _ELSEWHERE.search(text) is not None


def last_cause(lines: Iterable[str]) -> str | None:
    """The last exception in a text that says what is wrong, as ``ValueError: why``; None where there is none."""
    found = [match["error"] for line in lines if (match := _EXCEPTION.match(line.strip()))]
    return next((error for error in reversed(found) if not points_elsewhere(error.partition(":")[2])), None)


def place_in(traceback: str) -> str:
    """``(worker.py, line 12)``: where a traceback ends; empty where it has no line of a file."""
    places = list(_PLACE.finditer(traceback))
    if not places:
        return ""
    file, line = places[-1]["file"], places[-1]["line"]
    return f"({file.rpartition('/')[2]}, line {line})"


def process_in(traceback: str) -> tuple[int, str]:
    """Process id and address of the process in which Ray's traceback ends; 0 and "" where it names none."""
    found = list(_PROCESS.finditer(traceback))
    return (int(found[-1]["pid"]), found[-1]["node"]) if found else (0, "")


LONGEST = 500
"""Characters of another library's message."""
RESUME = "Go on from the newest checkpoint with --resume."


def as_backend_error(error: BaseException, doing: str, processes: Sequence[Process]) -> RllmError:
    """What happened while `doing`, in a paragraph.

    An error of ours that was raised in a worker comes back as it is: it says what is wrong by itself.

    Args:
        error: what was raised here.
        doing: such as "updating the policy".
        processes: those that may have failed.
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
    """Something did not end within its deadline."""
    return BackendError(
        "process-timeout",
        f"While {doing}: no answer within {seconds:g} seconds (`{key}`).",
        f"If it only needs longer, raise {key}; else look at the logs. {RESUME}",
        log_tails(processes),
    )


def ray_is_gone(daemon: str, doing: str) -> BackendError:
    """A process of Ray itself ended, named as by `dead_daemon`."""
    return BackendError(
        "process-died",
        f"While {doing}: Ray is gone: its {daemon} ended.",
        f"The system may have killed it for memory (`dmesg` tells). {RESUME}",
    )


def _raised_in_a_process(error: RayTaskError, doing: str, processes: Sequence[Process]) -> RllmError:
    cause: BaseException = error
    # A process that asks another one raises what that one raised.
    while isinstance(cause, RayTaskError):
        cause = cause.cause
    if isinstance(cause, RllmError):
        return cause
    if isinstance(cause, RayActorError):
        return _dead(cause, doing, processes)
    # Ray raises something of the cause's class that has nothing but the text of the traceback.
    text = plain(str(error))
    process, where = _origin(text, processes), place_in(text)
    what = f"While {doing}: {process.name} raised {type(cause).__name__}: {_shown(str(cause))} {where}".rstrip()
    if not points_elsewhere(str(cause)):
        return BackendError("worker-failed", f"{what}.", "Add --debug for its traceback.")
    return BackendError("worker-failed", f"{what}.{_told_cause(text, process)}", details=log_tails([process]))


def _dead(error: RayActorError, doing: str, processes: Sequence[Process]) -> BackendError:
    """A process died, or could not be made."""
    if error.actor_init_failed:
        text = plain(str(error))
        process = _origin(text, processes)
        because = _told_cause(text, process)
        return BackendError(
            "process-not-started",
            f"While {doing}: {process.name} could not start.{because}",
            details=log_tails([process]),
        )
    dead = [process for process in processes if process.actor_id and process.actor_id == str(error.actor_id or "")]
    names = ", ".join(f"{process.name} (process {process.pid} on {process.node})" for process in dead)
    return BackendError(
        "process-died",
        f"While {doing}: {names or 'a process of the run'} died.",
        f"Its log says why, or the system's: a process killed for memory writes nothing. {RESUME}",
        log_tails(dead or processes),
    )


def _origin(traceback: str, processes: Sequence[Process]) -> Process:
    """The process that raised first, by the text of Ray's error."""
    pid, node = process_in(traceback)
    known = (process for process in processes if (process.pid, process.node) == (pid, node))
    return next(known, Process(f"process {pid}", pid, node, ""))


def _told_cause(traceback: str, process: Process) -> str:
    found = last_cause(traceback.splitlines()) or last_cause(log_lines(process.pid))
    return f" The cause, by its log: {_shown(found)}." if found else ""


def _shown(text: str) -> str:
    return one_line(text, LONGEST) or "no message"
