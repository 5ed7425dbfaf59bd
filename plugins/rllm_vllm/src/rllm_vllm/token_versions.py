"""Which weights sampled which tokens, counted where vLLM's engine process hands them out.

A request that waits in vLLM's queue is sampled with the weights of the time when its turn comes, which may be newer
than those of the time when it was asked for. vLLM says when its engine process made each batch of tokens, and makes
none while weights change: the time of a batch tells its weights.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from rllm_core.data.version_spans import VersionSpan


class OutputProcessor(Protocol):
    """What is used of vLLM's class of this name."""

    request_states: Mapping[str, Any]
    """By vLLM's own names of requests; a state has ours, ``external_req_id``."""
    process_outputs: Callable[..., Any]


class TokenVersions:
    """Counts the tokens of requests by weight version."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, the clock with which vLLM's engine process stamps tokens."""
        self._clock = clock
        self._changes: list[float] = []
        self._versions: list[int] = []
        self._spans: dict[str, list[VersionSpan]] = {}

    def change(self, version: int) -> None:
        """Tokens that are made from here on are of `version`. Called while none are made."""
        self._changes.append(self._clock())
        self._versions.append(version)

    def begin(self, request: str) -> None:
        """Count the tokens of a request."""
        self._spans[request] = []

    def end(self, request: str) -> tuple[VersionSpan, ...]:
        """The spans of a request, in order. It is counted no longer."""
        return tuple(self._spans.pop(request))

    def count(self, request: str, tokens: int, made: float) -> None:
        """Add tokens that were made at the time `made`; nothing for a request that nobody counts."""
        spans = self._spans.get(request)
        if spans is None or not tokens:
            return
        version = self._versions[bisect_right(self._changes, made) - 1]
        if spans and spans[-1].version == version:
            spans[-1] = VersionSpan(version, spans[-1].tokens + tokens)
        else:
            spans.append(VersionSpan(version, tokens))


def count_tokens(processor: OutputProcessor, versions: TokenVersions) -> None:
    """Count all tokens that pass through `processor`, which is changed in place."""
    process = processor.process_outputs

    def process_and_count(outputs: Iterable[Any], made: float, *rest: Any) -> Any:
        # Before: the states of requests that end are gone afterwards.
        for output in outputs:
            state = processor.request_states.get(output.request_id)
            if state is not None:
                versions.count(state.external_req_id, len(output.new_token_ids), made)
        return process(outputs, made, *rest)

    processor.process_outputs = process_and_count
