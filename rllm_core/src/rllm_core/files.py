"""Files: atomic writes that leave the old or the new content after a crash, and reads that cannot block forever."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path

CHUNK = 1 << 20


def open_to_read(path: Path) -> BufferedReader:
    """Open a file that a user named. Opening a pipe, or reading a device, may never end.

    Raises:
        OSError: the file cannot be read, or it is a pipe or a device.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
    return path.open("rb")


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` with `text`, durably."""
    write_parts_atomically(path, [text])


def write_parts_atomically(path: Path, parts: Iterable[str]) -> None:
    """Replace `path` with the joined parts, durably. Each part is written when it is made."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_file(path: Path) -> None:
    """Wait until the file's content is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Wait until the directory's entries (names, renames) are on disk."""
    sync_file(path)


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
