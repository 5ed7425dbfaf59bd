"""Checks of log-probs: old log-probs must be finite, and sampling log-probs must exist if an algorithm divides by
them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rllm_core.data.batch import TokenBatch
from rllm_core.errors import RolloutError

IN_TRAINING = (
    "Let the workflow pass `logprobs` to its steps, or do without that: the trainer computes old log-probs itself "
    "where the sampler reports none."
)


def check_sampling_logprobs(batch: TokenBatch, wanted_by: str, hint: str = IN_TRAINING) -> None:
    """Raise RolloutError if the sampler did not report a log-prob that `wanted_by`, a key or a plugin, needs."""
    unknown = batch.unknown_logprobs
    if unknown.any():
        raise RolloutError(
            "missing-logprobs",
            f"{wanted_by} needs the log-probs that the sampler reports, and "
            f"{int(unknown.sum())} of {int(batch.loss_mask.sum())} sampled tokens have none, the first in "
            f"{_place(batch, unknown)}.",
            hint,
        )


def check_old_logprobs(batch: TokenBatch) -> None:
    """Raise RolloutError if an old log-prob of a sampled token is not a finite number."""
    assert batch.old_logprobs is not None
    wrong = batch.loss_mask & ~np.isfinite(batch.old_logprobs)
    if wrong.any():
        raise RolloutError(
            "logprobs-not-finite",
            f"{int(wrong.sum())} of {int(batch.loss_mask.sum())} sampled tokens have an old log-prob that is not "
            f"finite, the first ({batch.old_logprobs[wrong][0]}) in {_place(batch, wrong)}.",
            "Look at the log-probs that the workflow or the rollout engine reports. If it reports none, the backend's "
            "`process` computes them: see TokenBatch.old_logprobs_from.",
        )


def _place(batch: TokenBatch, tokens: NDArray[np.bool_]) -> str:
    """Return the trajectory and the group of the first True in `tokens`, (n_token,) bool."""
    row = int(np.searchsorted(batch.row_offsets, int(tokens.argmax()), side="right")) - 1
    group = int(batch.group[row])
    before = sum(len(each.trajectories) for each in batch.groups[:group])
    return f"trajectory {int(batch.trajectory[row]) - before} of group {batch.groups[group].group_id!r}"
