"""When a reply ends by itself: at a token of a set, or at a text."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

Stops = Callable[[NDArray[np.int32]], bool]
"""Asked after every token: whether the reply, (n,) int32 with n at least 1, ends with its last one."""
SLACK = 8
"""Tokens looked at beyond the longest text: a text may end within a token, and characters may be cut at the first."""


def stop_rule(text_of: Callable[[list[int]], str], stop_ids: Collection[int], texts: Collection[str]) -> Stops:
    """The rule for a reply that ends with one of `stop_ids`, or whose text contains one of `texts`.

    Args:
        text_of: decodes tokens.
        stop_ids: tokens that end a reply.
        texts: texts that end a reply; an empty collection costs nothing.
    """

    def at_token(sampled: NDArray[np.int32]) -> bool:
        return int(sampled[-1]) in stop_ids

    if not texts:
        return at_token
    # The rule is asked after every token, so a text that is new to the reply ends with the last one.
    window = max(len(text.encode()) for text in texts) + SLACK

    def at_token_or_text(sampled: NDArray[np.int32]) -> bool:
        if at_token(sampled):
            return True
        end = text_of(sampled[-window:].tolist())
        return any(text in end for text in texts)

    return at_token_or_text
