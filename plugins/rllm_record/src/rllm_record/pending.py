"""The pending rollouts of a running run: the file `pending.json` in its directory."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

PENDING = "pending.json"


@dataclass(frozen=True, kw_only=True)
class PendingRow:
    """A rollout in progress, and its wait."""

    rollout: str
    """Id of the task and number of the rollout, ``task-3:5``."""
    turn: int
    """Number of the turn, from 0."""
    waits_for: str
    """``model``, ``tool``, ``reward``, ``sandbox``, ``environment``, ``environment server`` or ``workflow``."""
    name: str
    """Name of the tool, the reward or the server, or an empty string."""
    since: float
    """Start of the wait, in seconds since 1970."""
    is_slow: bool
    """True if the wait is much longer than earlier waits."""


@dataclass(frozen=True, kw_only=True)
class PendingFile:
    """The content of the file."""

    total: int = 0
    """Number of rollouts in progress. The file has only the longest waits."""
    rows: Sequence[PendingRow] = field(default_factory=list)
    """The longest wait first."""


def write_pending(directory: Path, content: PendingFile) -> None:
    """Replace the file. A reader sees the old or the new content. A crash of the machine may lose it."""
    temporary = directory / f".{PENDING}.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(asdict(content)) + "\n", encoding="utf-8")
    temporary.replace(directory / PENDING)


def read_pending(directory: Path) -> PendingFile:
    """Return the content of the file. Empty if a run has no readable file."""
    try:
        content = json.loads((directory / PENDING).read_text(encoding="utf-8"))
        return PendingFile(total=int(content["total"]), rows=[PendingRow(**row) for row in content["rows"]])
    except (OSError, ValueError, TypeError, KeyError):
        return PendingFile()
