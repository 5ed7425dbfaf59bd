"""Names and states of the files of a record."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

_NAME = re.compile(r"step_([0-9]+)\.parquet")


class FileState(NamedTuple):
    """Changes when another file takes the place."""

    inode: int
    modified: int
    """Nanoseconds of Unix time."""
    size: int


def fate_files(record: Path) -> dict[int, Path]:
    """Step -> file of its fates, which is written last: these steps are whole."""
    return files_of(record, "fates")


def files_of(record: Path, kind: str) -> dict[int, Path]:
    """Step -> file of a kind, such as ``traces``."""
    try:
        entries = list(os.scandir(record / kind))
    except OSError:  # nothing is recorded yet
        return {}
    found = ((_NAME.fullmatch(entry.name), entry) for entry in entries)
    return {int(match[1]): Path(entry.path) for match, entry in found if match}


def state_of(file: Path) -> FileState:
    """Of a file that may be gone by now."""
    try:
        status = file.stat()
    except OSError:
        return FileState(0, 0, 0)
    return FileState(status.st_ino, status.st_mtime_ns, status.st_size)
