"""The number of steps that are in memory, for answers that need all steps."""

from __future__ import annotations

from rllm_view.reading.record_files import fate_files
from rllm_view.reading.run import Run

WAIT = 0.3
"""Seconds that an answer waits for steps that are not in memory yet."""


def refreshed(run: Run) -> dict[str, int]:
    """Read new steps for a moment, and return how many of the recorded steps are read."""
    run.index.refresh_for(WAIT)
    return {"indexed": len(run.index.steps()) + len(run.index.problems), "recorded": len(fate_files(run.record))}
