"""Records of an append-only file. Each record has a length, a number and a checksum.

If the process was killed, the file may end with an incomplete record. That record was never acknowledged, so it is
ignored. Any other difference from the written records is damage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from rllm_record.journal.errors import WITHOUT, JournalError

_HEAD = struct.Struct("<III")
"""Length of the body, number of the record, checksum of the body."""
_SUM = struct.Struct("<I")
"""Checksum of the head. Without it, a changed length would look like an incomplete record."""
_OVERHEAD = _HEAD.size + _SUM.size


@dataclass(frozen=True)
class Whole:
    """The complete records of a file."""

    records: list[bytes]
    length: int
    """Size of the records in the file, in bytes. Bytes after that belong to an incomplete record."""


def framed(number: int, body: bytes) -> bytes:
    """Return the bytes of a record. `number` is its number in the file, from 0."""
    head = _HEAD.pack(len(body), number, crc32(body))
    return head + _SUM.pack(crc32(head)) + body


def read_frames(path: Path) -> Whole:
    """Return the complete records of a file.

    Raises:
        JournalError: a record is damaged.
    """
    content = path.read_bytes()
    records, place = [], 0
    for body, end in _frames(content, path):
        records.append(body)
        place = end
    return Whole(records, place)


def _frames(content: bytes, path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield the body of each record, and the position of its end."""
    place = number = 0
    while len(content) - place >= _OVERHEAD:
        head = content[place : place + _HEAD.size]
        length, named, expected = _HEAD.unpack(head)
        (checksum,) = _SUM.unpack_from(content, place + _HEAD.size)
        if checksum != crc32(head) or named != number:
            raise _damaged(path, number)
        start = place + _OVERHEAD
        body = content[start : start + length]
        if len(body) < length:
            return
        if crc32(body) != expected:
            raise _damaged(path, number)
        place, number = start + length, number + 1
        yield body, place


def _damaged(path: Path, number: int) -> JournalError:
    return JournalError(
        "damaged-journal",
        f"Record {number} of {path} is not what was written.",
        f"Copy the file back from a backup. {WITHOUT}",
    )
