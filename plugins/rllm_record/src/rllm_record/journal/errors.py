"""The error of a journal."""

from __future__ import annotations

from rllm_core.errors import BackendError

WITHOUT = "To sample these rounds again with newer weights, add `rllm.trainer.observers=[{name: journal, keep: off}]`."
"""Hint that explains how a run continues without its journal."""


class JournalError(BackendError):
    """The journal cannot be written, or is damaged. A retry of the rollout cannot help."""
