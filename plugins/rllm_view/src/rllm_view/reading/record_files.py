"""Names and states of the files of a record."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

_NAME = re.compile(r"step_([0-9]+)\.parquet")


class FileState(NamedTuple):
    """Identity of a file. It changes if the file is replaced."""

    inode: int
    modified: int
    """Nanoseconds of Unix time."""
    size: int


def fate_files(record: Path) -> dict[int, Path]:
    """Return the outcome file of each step. It is written last, so these steps are complete."""
    return files_of(record, "fates")


def files_of(record: Path, kind: str) -> dict[int, Path]:
    """Return the file of a kind, such as ``traces``, for each step."""
    try:
        entries = list(os.scandir(record / kind))
    except OSError:  # nothing is recorded yet
        return {}
    found = ((_NAME.fullmatch(entry.name), entry) for entry in entries)
    return {int(match[1]): Path(entry.path) for match, entry in found if match}


def state_of(file: Path) -> FileState:
    """Return the state of a file. The file may be deleted by now."""
    try:
        status = file.stat()
    except OSError:
        return FileState(0, 0, 0)
    return FileState(status.st_ino, status.st_mtime_ns, status.st_size)
