"""What a store of calls refuses, and what fails in it."""

from __future__ import annotations

from rllm_core.errors import RllmError


class StoreError(RllmError):
    """A row could not be written, or the store could not be opened or read. Nothing of the row is in the store."""


class SealedError(StoreError):
    """The session has ended: it takes no more calls and rewards."""


class UnknownSessionError(StoreError):
    """There is no such session, or it was pruned."""


class DuplicateError(StoreError):
    """The store has a row with this id."""


class DamagedError(StoreError):
    """What was read is not what was written."""
