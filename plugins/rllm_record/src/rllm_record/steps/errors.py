"""What is wrong with a record."""

from __future__ import annotations

from rllm_core.errors import RllmError


class RecordError(RllmError):
    """A record cannot be written or read."""
