"""A server's response, which becomes verl's `TokenOutput` in the process that receives it.

The server's process does not import verl, because that takes several seconds of CPU time. The receiving process has
already imported it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

StopReason = Literal["completed", "aborted"]


@dataclass(frozen=True)
class Response:
    """The response to one prompt. It is unpickled as a `verl.workers.rollout.replica.TokenOutput`."""

    token_ids: list[int]
    log_probs: list[float] | None
    """Log-probs under softmax(logits / temperature), before top-p and top-k. None if the request was rejected."""
    stop_reason: StopReason
    weight_version: int
    """verl's ``global_steps``: the oldest weight version that sampled a token of the response."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return token_output, (self.token_ids, self.log_probs, self.stop_reason, self.weight_version)


def token_output(
    token_ids: list[int], log_probs: list[float] | None, stop_reason: StopReason, weight_version: int
) -> Any:
    """Return verl's object for a response."""
    from verl.workers.rollout.replica import TokenOutput

    return TokenOutput(
        token_ids=token_ids,
        log_probs=log_probs,
        stop_reason=stop_reason,
        num_preempted=0,
        extra_fields={"global_steps": weight_version},
    )
