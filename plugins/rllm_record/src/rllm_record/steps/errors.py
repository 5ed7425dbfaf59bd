"""What is wrong with a record."""

from __future__ import annotations

from pathlib import Path

from rllm_core.errors import RllmError


class RecordError(RllmError):
    """A record cannot be written or read."""


def unreadable(place: Path, error: Exception) -> RecordError:
    """The error about a file that cannot be read, from what its reader raised."""
    # pyarrow's sentences have a full stop, those of the operating system have none.
    return RecordError(
        "file-unreadable",
        f"{place} cannot be read: {str(error).rstrip('.')}.",
        "Copy it back from a backup. The other steps can still be read.",
    )
