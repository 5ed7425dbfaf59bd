"""Checks of the tokens of rollouts and batches.

- Old log-probs must be finite. Sampling log-probs must exist if an algorithm divides by them.
- The requested weight version sampled every token, and it is not too old.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import TokenBatch
from rllm_core.data.types import Episode
from rllm_core.errors import PipelineError, RolloutError

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


KEY = "rllm.async_training.staleness_threshold"
PASS_ON = "Let the workflow pass `weight_version` and `version_spans` of the completion to its steps."


def check_versions(episodes: Iterable[Episode], version: int | None) -> None:
    """Raise PipelineError unless the requested version sampled every step. If `version` is None, any version may
    have."""
    if version is None:
        return
    for episode in episodes:
        for trajectory in episode.trajectories:
            for step in trajectory.steps:
                if step.weight_version != version or any(span.version != version for span in step.version_spans):
                    raise PipelineError(
                        "wrong-weight-version",
                        f"Rollout {episode.id!r} was requested from version {version} of the weights, and a step of it "
                        f"has version {step.weight_version}.",
                        PASS_ON,
                    )


def check_staleness(step: TrainStep, most: int) -> None:
    """Raise PipelineError if a token of the batch was sampled by weights that are more than `most` updates old."""
    batch = step.filled_batch
    stale = step.weight_version - int(batch.versions[batch.loss_mask].min())
    if stale > most:
        raise PipelineError(
            "rollout-too-old",
            f"A token was sampled by weights that are {stale} updates old, and {KEY} is {most}.",
            f"{PASS_ON} A rejection mode that keeps groups must set `updates_waited`.",
        )
