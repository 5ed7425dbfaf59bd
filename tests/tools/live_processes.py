"""Checks whether processes run, and lists processes that a test has started."""

from __future__ import annotations

import os
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Return False if the process has ended, even if its parent has not read its exit code."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def commands_with(variable: str, value: str) -> list[str]:
    """Return the commands of all other processes that have started with this environment variable."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{variable}={value}".encode() in (entry / "environ").read_bytes() and int(entry.name) != os.getpid():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found
