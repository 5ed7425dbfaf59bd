"""A file of lines that a crash cannot damage: every line is a separate gzip member, and is only appended.

``zcat``, pandas and `gzip.open` read it as one JSON Lines file (RFC 1952, section 2.2).
"""

from __future__ import annotations

import gzip
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from rllm_core.errors import RllmError

CHUNK = 1 << 20
GZIP = 31
"""`wbits` of zlib for a gzip member."""
SECONDS_BETWEEN_SYNCS = 1.0
"""Seconds of data that a power failure may lose. Killing the process loses no appended line."""


class MemberFile:
    """A file for lines. New lines come after the last whole line of an earlier process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        try:
            self._file.truncate(whole_length(path))
        except BaseException:
            self._file.close()
            raise
        self._synced = time.monotonic()

    def append(self, line: str) -> None:
        """Write a line without its end."""
        self._file.write(gzip.compress(line.encode() + b"\n", mtime=0))
        self._file.flush()
        if time.monotonic() - self._synced >= SECONDS_BETWEEN_SYNCS:
            self._sync()

    def close(self) -> None:
        """Wait until everything is on disk."""
        try:
            self._sync()
        finally:
            self._file.close()

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()


def read_lines(path: Path) -> Iterator[str]:
    """Yield all complete lines. An incomplete line at the end, from a killed process, is ignored.

    Raises:
        RllmError: the file is damaged.
    """
    with path.open("rb") as file:
        for line, _ in _members(file, path):
            yield line.decode()


def whole_length(path: Path) -> int:
    """Return the number of bytes up to the end of the last whole line."""
    with path.open("rb") as file:
        return max((end for _, end in _members(file, path)), default=0)


def _members(file: BinaryIO, path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield each complete member decompressed, with the offset of its end."""
    unpacker, parts, rest, end = zlib.decompressobj(GZIP), list[bytes](), b"", 0
    while data := rest or file.read(CHUNK):
        try:
            parts.append(unpacker.decompress(data))
        except zlib.error as error:
            raise RllmError(
                "damaged-file",
                f"{path} is damaged after its first {end} bytes: {error}.",
                f"`truncate --size {end} {path}` keeps what is whole.",
            ) from error
        rest = unpacker.unused_data
        if unpacker.eof:
            end = file.tell() - len(rest)
            yield b"".join(parts), end
            unpacker, parts = zlib.decompressobj(GZIP), []
