"""Checks of weight versions on every token: the requested version sampled it, and it is not too old."""

from __future__ import annotations

from collections.abc import Iterable

from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import Episode
from rllm_core.errors import PipelineError

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
