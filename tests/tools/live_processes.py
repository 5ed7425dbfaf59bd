"""Checks whether processes run."""

from __future__ import annotations

from pathlib import Path


def is_alive(pid: int) -> bool:
    """Return False if the process has ended, even if its parent has not read its exit code."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
