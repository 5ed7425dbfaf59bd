"""The status of a run, written by its process. `rllm_record.run_files.read_status` reads it."""

from __future__ import annotations

import contextlib
import json
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from rllm_core.errors import RllmError
from rllm_core.files import write_atomically
from rllm_core.notices import one_line
from rllm_record.run_files import STATUS, RunStatus, Status, read_written_status


@contextmanager
def record_status(directory: Path, is_stopped: Callable[[], bool]) -> Iterator[None]:
    """Write that the run in a directory is running, and at the end of the block how it ended.

    A resumed run keeps the time of its first start.

    Args:
        directory: directory of the run, locked by this process.
        is_stopped: called at the end. True if the user stopped the run before its last step.
    """
    before = read_written_status(directory)
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
