"""A reply on its way from a server to verl: verl's `TokenOutput` for whoever receives it.

The server's process does not import verl, which takes several seconds of CPU; only receivers do, who have it already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

StopReason = Literal["completed", "aborted"]


@dataclass(frozen=True)
class Response:
    """What was sampled after one prompt. Unpickled, it is a `verl.workers.rollout.replica.TokenOutput`."""

    token_ids: list[int]
    log_probs: list[float] | None
    """Under softmax(logits / temperature), before top-p and top-k; None unless they were asked for."""
    stop_reason: StopReason
    weight_version: int
    """verl's ``global_steps``: the oldest weights that sampled a token of it."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return token_output, (self.token_ids, self.log_probs, self.stop_reason, self.weight_version)


def token_output(
    token_ids: list[int], log_probs: list[float] | None, stop_reason: StopReason, weight_version: int
) -> Any:
    """Make verl's record of a reply."""
    from verl.workers.rollout.replica import TokenOutput

    return TokenOutput(
        token_ids=token_ids,
        log_probs=log_probs,
        stop_reason=stop_reason,
        num_preempted=0,
        extra_fields={"global_steps": weight_version},
    )
