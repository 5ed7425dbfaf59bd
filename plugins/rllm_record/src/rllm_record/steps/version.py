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
    """Reject a file that this package cannot read correctly.

    Args:
        place: path of the file, for the error.
        metadata: metadata of its schema.

    Raises:
        RecordError: the file has a newer schema, or does not belong to a record.
    """
    version = (metadata or {}).get(VERSION_KEY, b"").decode()
    if not version.isdecimal():
        raise RecordError(
            "wrong-file-type", f"{place} is not a record of a step.", "Use a file in record/ of a run folder."
        )
    if int(version) > VERSION:
        raise RecordError(
            "schema-too-new",
            f"{place} has schema {version}, but this rllm-record supports only schemas up to {VERSION}.",
            "Install a newer version: pip install --upgrade rllm-record",
        )
