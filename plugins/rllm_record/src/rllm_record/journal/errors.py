"""What goes wrong with a journal."""

from __future__ import annotations

from rllm_core.errors import BackendError

WITHOUT = "To play these rounds again with other weights, add `rllm.trainer.observers=[{name: journal, keep: off}]`."
"""Hint: how a run goes on without its journal."""


class JournalError(BackendError):
    """The journal cannot be written, or does not hold what was written. No further try of an attempt can help."""
