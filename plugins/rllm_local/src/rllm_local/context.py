"""Longest context that a model computes exactly, whatever other rows are in a pass."""

from __future__ import annotations

from typing import Any

from rllm_core.errors import ConfigError


def longest_context(config: Any, default: int) -> int:
    """Return the most tokens of a row. `default` is for models without `max_position_embeddings`.

    The scale of `dynamic` rope changes beyond `max_position_embeddings` only, so it needs no separate limit.
    """
    longest = int(getattr(config, "max_position_embeddings", 0) or default)
    return min(longest, longrope_limit(config) or longest)


def longrope_limit(config: Any) -> int | None:
    """Return the length from which longrope uses its long factors, None for models without longrope.

    transformers switches all tokens of a pass when the longest row of the pass exceeds the length. Cached keys keep
    their old angles, so log-probs beyond the length would depend on other rows and on the cache.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    # Some models have rope parameters per type of layer.
    parts = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    limits = [part["original_max_position_embeddings"] for part in parts if part.get("rope_type") == "longrope"]
    return min(map(int, limits)) if limits else None


def check_max_length(name: str, max_length: int, rope_changes_beyond: int | None) -> None:
    """Raise ConfigError if conversations may become longer than longrope computes exactly."""
    if rope_changes_beyond is not None and max_length > rope_changes_beyond:
        raise ConfigError(
            "context-too-long",
            f"training.max_length={max_length}, and model.name={name!r} has longrope: beyond {rope_changes_beyond} "
            "tokens it rotates all tokens by other angles, so log-probs depend on the cache and on other rows.",
            f"Set training.max_length={rope_changes_beyond} or lower.",
        )
