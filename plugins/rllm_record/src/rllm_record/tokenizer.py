"""Which tokenizer the tokens of a record are of."""

from __future__ import annotations

from rllm_core.contracts.renderer import Renderer


def tokenizer_of(renderer: Renderer) -> str | None:
    """`Sampler.tokenizer` of a run with this renderer; None where nobody noted its tokenizer."""
    try:
        from rllm_backend_kit.portable_renderer import tokenizer_digest
    except ModuleNotFoundError:
        # A backend of somebody's that makes its renderer itself.
        return None
    return tokenizer_digest(renderer)
