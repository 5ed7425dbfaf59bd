"""The longest row that a model of Hugging Face transformers computes exactly, from its config."""

from __future__ import annotations

from typing import Any


def longest_context(config: Any, default: int) -> int:
    """Return the maximum number of tokens in a row whose values do not depend on other rows.

    The scale of `dynamic` rope changes only beyond `max_position_embeddings`, so it needs no separate limit. It then
    changes for all rows of the pass, and stays changed for later passes.

    Args:
        config: the config of the text model.
        default: the maximum for models without `max_position_embeddings`.
    """
    longest = int(getattr(config, "max_position_embeddings", 0) or default)
    return min(longest, longrope_limit(config) or longest)


def longrope_limit(config: Any) -> int | None:
    """Return the length from which longrope uses its long factors, None for models without longrope.

    transformers switches all tokens of a pass when the longest row of the pass exceeds the length. Cached keys keep
    their old angles, so log-probs beyond the length would depend on other rows and on the cache.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    # Some models have rope parameters for each layer type.
    parts = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    limits = [part["original_max_position_embeddings"] for part in parts if part.get("rope_type") == "longrope"]
    return min(map(int, limits)) if limits else None
