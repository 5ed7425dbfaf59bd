"""Records of a file that only grows: each has a length, a number and a checksum.

A file that was cut off ends in less than a whole record, which was never acknowledged. Anything else that is not as it
was written is damage.
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
"""Checksum of the head: a length that has changed is damage, and no file that was cut off."""
_OVERHEAD = _HEAD.size + _SUM.size


@dataclass(frozen=True)
class Whole:
    """The whole records of a file."""

    records: list[bytes]
    length: int
    """Bytes that they take. What follows is the beginning of a record that was cut off."""


def framed(number: int, body: bytes) -> bytes:
    """A record as it is written, with its number in the file, from 0."""
    head = _HEAD.pack(len(body), number, crc32(body))
    return head + _SUM.pack(crc32(head)) + body


def read_frames(path: Path) -> Whole:
    """The records of a file.

    Raises:
        JournalError: one is not what was written.
    """
    content = path.read_bytes()
    records, place = [], 0
    for body, end in _frames(content, path):
        records.append(body)
        place = end
    return Whole(records, place)


def _frames(content: bytes, path: Path) -> Iterator[tuple[bytes, int]]:
    """Bodies, and where each ends."""
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
