"""Weight versions of the tokens of a response, if the weights changed during sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class VersionSpan(NamedTuple):
    """A span of consecutive tokens that one weight version sampled."""

    version: int
    """Number of the policy update that produced the weights."""
    tokens: int
    """Number of tokens, at least 1."""


def check_version_spans(spans: Sequence[VersionSpan], tokens: int, weight_version: int) -> None:
    """Check that `spans`, in order, cover a response of `tokens` tokens. Without spans, all tokens have
    `weight_version`.

    Raises:
        ValueError: a span is empty, the spans do not add up, or `weight_version` is not their oldest version.
    """
    if not spans:
        return
    lengths = [span.tokens for span in spans]
    if min(lengths) < 1 or sum(lengths) != tokens:
        raise ValueError(f"version spans of {lengths} tokens, none empty, must add up to a response of {tokens}")
    if (oldest := min(span.version for span in spans)) != weight_version:
        raise ValueError(f"weight_version is {weight_version}, and the oldest version span has version {oldest}")
