"""The error of a record."""

from __future__ import annotations

from pathlib import Path

from rllm_core.errors import RllmError


class RecordError(RllmError):
    """A record cannot be written or read."""


def unreadable(place: Path, error: Exception) -> RecordError:
    """Return the error for a file that cannot be read, from the exception of its reader."""
    # Messages of pyarrow end with a full stop, but messages of the operating system do not.
    return RecordError(
        "file-unreadable",
        f"{place} cannot be read: {str(error).rstrip('.')}.",
        "Copy it back from a backup. The other steps can still be read.",
    )
