"""The version of a record's schema, in the metadata of each of its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rllm_record.steps.errors import RecordError

VERSION = 3
"""The version of the tables. Older versions are read, too. 2 adds traces, updates, vocabulary and advantages, and 3
adds digests."""
FIRST_WITH_DIGESTS = 3
VERSION_KEY = b"rllm.record.version"


def require_known_version(place: Path, metadata: Mapping[bytes, bytes] | None) -> None:
    """Refuse a file that this package cannot read as it was meant.

    Args:
        place: of the file, for the error.
        metadata: of its schema.

    Raises:
        RecordError: it is of a newer schema, or no file of a record.
    """
    version = (metadata or {}).get(VERSION_KEY, b"").decode()
    if not version.isdecimal():
        raise RecordError(
            "wrong-file-type", f"{place} is not a record of a step.", "Name a file below record/ of a run folder."
        )
    if int(version) > VERSION:
        raise RecordError(
            "schema-too-new",
            f"{place} has schema {version}; this rllm-record knows {VERSION}.",
            "Install a newer rllm-record.",
        )
