"""The pending rollouts of a run and their waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rllm_record.pending import PendingFile, PendingRow, read_pending
from rllm_record.run_files import read_status
from rllm_view.reading.run import Run


def pending_rollouts(run: Run) -> PendingFile:
    """Return the pending rollouts of a run. Empty if it is not running."""
    # The file of a killed run has rollouts that do not exist any more.
    status = read_status(run.place.directory)
    is_running = status is not None and status.status == "running"
    return read_pending(run.place.directory) if is_running else PendingFile()


def pending_rows(rows: Sequence[PendingRow], now: float) -> list[dict[str, Any]]:
    """Return the rows as JSON, with the seconds of each wait. `now` is in seconds since 1970."""
    return [{**asdict(row), "seconds": round(max(0.0, now - row.since), 1)} for row in rows]
