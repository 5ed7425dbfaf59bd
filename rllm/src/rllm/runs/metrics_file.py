"""`metrics.jsonl`: a line per step and per validation, and what of the file can be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rllm_core.errors import RllmError

METRICS = "metrics.jsonl"


def read_metrics(directory: Path) -> list[dict[str, Any]]:
    """The lines of the metrics in a run folder; empty where there are none.

    The last line is left out where it is not whole: a crash cut it off.

    Raises:
        RllmError: another line is not what a run writes; the message has its number.
    """
    path = directory / METRICS
    if not path.exists():
        return []
    *whole, cut_off = path.read_bytes().split(b"\n")
    lines = [parse_line(line) for line in whole]
    if lines and lines[-1] is None and not cut_off:
        lines.pop()
    read = [line for line in lines if line is not None]
    if len(read) < len(lines):
        raise RllmError(
            "damaged-file",
            f"Line {lines.index(None) + 1} of {path} is not what a run writes.",
            "Delete this line from the file: its step is then missing in curves.",
        )
    return read


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Values by name, ``step`` among them; None: the line is not what a run writes."""
    try:
        values = json.loads(line)
    except ValueError:  # of texts that are no UTF-8, too
        return None
    return values if isinstance(values, dict) and isinstance(values.get("step"), int) else None
