"""When a sampled reply ends: with a stop token, or once its text contains a stop string."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_local.engine import Stops

SLACK = 8
"""Tokens of the window beyond one per byte of the longest stop string: some tokens are no text at all."""


def stop_rule(tokenizer: Any, stop_ids: Collection[int], stop_strings: Collection[str]) -> Stops:
    """The rule for a reply that ends with one of `stop_ids`, or whose decoded text contains one of `stop_strings`."""

    def at_token(sampled: NDArray[np.int32]) -> bool:
        return int(sampled[-1]) in stop_ids

    if not stop_strings:
        return at_token
    # The rule is asked after every token, so a string that is new to the text ends with the last one.
    window = max(len(string.encode()) for string in stop_strings) + SLACK

    def at_token_or_string(sampled: NDArray[np.int32]) -> bool:
        if at_token(sampled):
            return True
        tail = sampled[-window:].tolist()
        text = tokenizer.decode(tail, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return any(string in text for string in stop_strings)

    return at_token_or_string
