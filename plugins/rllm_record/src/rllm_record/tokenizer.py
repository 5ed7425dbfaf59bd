"""Identify the tokenizer of a record's tokens."""

from __future__ import annotations

from rllm_core.contracts.renderer import Renderer


def tokenizer_of(renderer: Renderer) -> str | None:
    """Return the `Sampler.tokenizer` of a run with this renderer. None if the tokenizer is unknown."""
    try:
        from rllm_backend_kit.portable_renderer import tokenizer_digest
    except ModuleNotFoundError:
        # The backend comes from a different package, and makes its own renderer.
        return None
    return tokenizer_digest(renderer)
