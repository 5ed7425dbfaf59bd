"""Digests of a step's files. The file with the outcomes contains them in its metadata, and its own digest too.

It is written last.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

KEY = b"rllm.record.digests"
LAST = "outcomes"
"""The kind of the file with the digests."""
BLANK = "0" * 32
"""Replaces the file's own digest while it is computed."""


def digest_of(data: bytes) -> str:
    """Return a digest of 32 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=len(BLANK) // 2).hexdigest()


def mark_with(digests: Mapping[str, str]) -> str:
    """Return the metadata value of a file of outcomes, before the file's own digest is added.

    Args:
        digests: kind -> digest of the step's other files.
    """
    return json.dumps({**digests, LAST: BLANK})


def sealed(data: bytes) -> bytes:
    """Return the contents of a file of outcomes with its own digest added."""
    return _with_own(data, BLANK, digest_of(data))


def is_sealed(data: bytes, digest: str) -> bool:
    """True if the contents of a file of outcomes match `digest`, the digest in its metadata."""
    return digest_of(_with_own(data, digest, BLANK)) == digest


def _with_own(data: bytes, before: str, after: str) -> bytes:
    # The metadata is at the end of a Parquet file, uncompressed.
    head, name, tail = data.rpartition(f'"{LAST}": "{before}"'.encode())
    return head + name.replace(before.encode(), after.encode()) + tail
