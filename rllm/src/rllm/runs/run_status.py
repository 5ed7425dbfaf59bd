"""The status of a run: its process writes it, and a lock that ends with the process shows if it still runs."""

from __future__ import annotations

import contextlib
import fcntl
import json
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from rllm.runs.run_directory import LOCK, STATUS
from rllm_core.errors import RllmError
from rllm_core.files import write_atomically
from rllm_core.notices import one_line

Status = Literal["running", "finished", "stopped", "failed", "killed"]


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """State of a run, and its times in UTC, such as ``2026-11-29T09:41:33+00:00``."""

    status: Status
    """``killed``: the process wrote ``running`` and does not exist anymore. A copy of a running run also shows it."""
    started: str
    """Time of the run's first start."""
    ended: str | None = None
    """None if the run continues, or was killed."""
    reason: str = ""
    """Message of the error that ended a failed run."""


def read_status(directory: Path) -> RunStatus | None:
    """Return the status of the run in a directory. None if the run did not record a readable status."""
    written = _read_written(directory)
    if written is None or written.status != "running" or _is_locked(directory / LOCK):
        return written
    return replace(written, status="killed")


@contextmanager
def record_status(directory: Path, is_stopped: Callable[[], bool]) -> Iterator[None]:
    """Write that the run in a directory is running, and at the end of the block how it ended.

    A resumed run keeps the time of its first start.

    Args:
        directory: directory of the run, locked by this process.
        is_stopped: called at the end. True if the user stopped the run before its last step.
    """
    before = _read_written(directory)
    running = RunStatus(status="running", started=_now() if before is None else before.started)
    _write(directory, running)
    status: Status = "failed"
    reason = ""
    try:
        yield
        status = "stopped" if is_stopped() else "finished"
    except (KeyboardInterrupt, CancelledError):
        status = "stopped"
        raise
    except Exception as error:
        reason = one_line(error.message if isinstance(error, RllmError) else f"{type(error).__name__}: {error}")
        raise
    finally:
        # Without this file the run counts as killed, for example on a full disk. The run's own error is the one to see.
        with contextlib.suppress(OSError):
            _write(directory, replace(running, status=status, ended=_now(), reason=reason))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _write(directory: Path, status: RunStatus) -> None:
    write_atomically(directory / STATUS, json.dumps(asdict(status)) + "\n")


def _read_written(directory: Path) -> RunStatus | None:
    try:
        status = RunStatus(**json.loads((directory / STATUS).read_text(encoding="utf-8")))
        datetime.fromisoformat(status.started)
    except (OSError, ValueError, TypeError):
        return None
    is_valid = status.status in get_args(Status) and isinstance(status.ended or "", str)
    return status if is_valid and isinstance(status.reason, str) else None


def _is_locked(lock: Path) -> bool:
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
