"""`metrics.jsonl`: a line per step and per validation, and what of the file can be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rllm_core.errors import RllmError

METRICS = "metrics.jsonl"


def read_metrics(directory: Path) -> list[dict[str, Any]]:
    """Return the lines of the metrics in a run directory. Empty if there are none.

    An incomplete last line, from a crash, is ignored.

    Raises:
        RllmError: another line is not valid. The message has its number.
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
            f"Line {lines.index(None) + 1} of {path} is not a valid line of metrics.",
            "Delete this line from the file. Its step is then missing in curves.",
        )
    return read


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return values by name, including ``step``. None if the line is not valid."""
    try:
        values = json.loads(line)
    except ValueError:  # also raised for text that is not UTF-8
        return None
    return values if isinstance(values, dict) and isinstance(values.get("step"), int) else None
