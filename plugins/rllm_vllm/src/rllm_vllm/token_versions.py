"""Find the weight version of each token, from the output of vLLM's engine process.

A request may wait in vLLM's queue while new weights are loaded, so its tokens may come from newer weights than the
request. vLLM reports when its engine process generated each batch of tokens, and generates none while weights are
loaded. So the time of a batch determines its weights.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from rllm_core.data.version_spans import VersionSpan


class OutputProcessor(Protocol):
    """The parts of vLLM's class of this name that are used here."""

    request_states: Mapping[str, Any]
    """vLLM's internal request id -> state. The state contains this package's request id, ``external_req_id``."""
    process_outputs: Callable[..., Any]


class TokenVersions:
    """Counts the tokens of each request by weight version."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Use `clock`, in seconds. It must be the clock with which vLLM's engine process stamps tokens."""
        self._clock = clock
        self._changes: list[float] = []
        self._versions: list[int] = []
        self._spans: dict[str, list[VersionSpan]] = {}

    def change(self, version: int) -> None:
        """Set the weight version of all later tokens. Call it while no tokens are generated."""
        self._changes.append(self._clock())
        self._versions.append(version)

    def begin(self, request: str) -> None:
        """Start to count the tokens of a request."""
        self._spans[request] = []

    def end(self, request: str) -> tuple[VersionSpan, ...]:
        """Stop counting the tokens of a request, and return its version spans in order."""
        return tuple(self._spans.pop(request))

    def count(self, request: str, tokens: int, made: float) -> None:
        """Add tokens that were generated at the time `made`. Ignored if the request is not counted."""
        spans = self._spans.get(request)
        if spans is None or not tokens:
            return
        version = self._versions[bisect_right(self._changes, made) - 1]
        if spans and spans[-1].version == version:
            spans[-1] = VersionSpan(version, spans[-1].tokens + tokens)
        else:
            spans.append(VersionSpan(version, tokens))


def count_tokens(processor: OutputProcessor, versions: TokenVersions) -> None:
    """Change `processor` in place, so that it counts all tokens."""
    process = processor.process_outputs

    def process_and_count(outputs: Iterable[Any], made: float, *rest: Any) -> Any:
        # Count first, because `process` removes the states of finished requests.
        for output in outputs:
            state = processor.request_states.get(output.request_id)
            if state is not None:
                versions.count(state.external_req_id, len(output.new_token_ids), made)
        return process(outputs, made, *rest)

    processor.process_outputs = process_and_count
