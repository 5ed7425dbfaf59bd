"""Digests of a step's files, in the marks of its outcomes. That file is written last, and it has its own digest too."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

KEY = b"rllm.record.digests"
LAST = "fates"
"""The kind of the file with the digests."""
BLANK = "0" * 32
"""Replaces the file's own digest while it is computed."""


def digest_of(data: bytes) -> str:
    """32 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=len(BLANK) // 2).hexdigest()


def mark_with(digests: Mapping[str, str]) -> str:
    """The mark of a file of outcomes that is not sealed yet.

    Args:
        digests: of the step's other files, by kind.
    """
    return json.dumps({**digests, LAST: BLANK})


def sealed(data: bytes) -> bytes:
    """A file of outcomes with its own digest in its mark."""
    return _with_own(data, BLANK, digest_of(data))


def is_sealed(data: bytes, digest: str) -> bool:
    """True if a file of outcomes has the digest that its mark gives."""
    return digest_of(_with_own(data, digest, BLANK)) == digest


def _with_own(data: bytes, before: str, after: str) -> bytes:
    # The marks are at the end of a Parquet file, uncompressed.
    head, name, tail = data.rpartition(f'"{LAST}": "{before}"'.encode())
    return head + name.replace(before.encode(), after.encode()) + tail
