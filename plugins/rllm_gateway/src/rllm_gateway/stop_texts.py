"""Stop texts where the engine has none: a reply is cut at the token that completes one.

Tokens are sampled one after another, so that what precedes the cut is distributed as if sampling had stopped there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, TopTokens
from rllm_core.data.version_spans import VersionSpan


def cut_at_texts(
    completion: Completion, text_of: Callable[[NDArray[np.int32]], str], stop: tuple[str, ...]
) -> Completion:
    """The reply up to the first token at which its text contains one of `stop`; the same reply where none does."""
    ids = completion.token_ids
    if not stop or not _contains(text_of(ids), stop):
        return completion
    # The text of the first n tokens grows with n, so the first n that has a stop text is found by halving.
    low, high = 1, len(ids)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _contains(text_of(ids[:middle]), stop) else (middle + 1, high)
    spans, top = first_spans(completion.version_spans, low), completion.top
    return Completion(
        token_ids=ids[:low],
        logprobs=completion.logprobs[:low],
        finish_reason="stop",
        weight_version=min((span.version for span in spans), default=completion.weight_version),
        version_spans=spans,
        top=None if top is None else TopTokens(top.ids[:low], top.logprobs[:low]),
    )


def first_spans(spans: Sequence[VersionSpan], tokens: int) -> tuple[VersionSpan, ...]:
    """The runs that cover the first `tokens` tokens."""
    kept: list[VersionSpan] = []
    for span in spans:
        if tokens > 0:
            kept.append(VersionSpan(span.version, min(span.tokens, tokens)))
        tokens -= span.tokens
    return tuple(kept)


def _contains(text: str, stop: tuple[str, ...]) -> bool:
    return any(each in text for each in stop)
