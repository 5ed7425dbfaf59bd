"""The data classes of a step's record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllm_core.data.batch import TokenBatch
from rllm_core.data.record import OptimizerStep, Outcome, TokenTrace
from rllm_core.data.types import Episode, Trajectory


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Tokenizer and temperature with which the tokens of a file were sampled."""

    tokenizer: str | None = None
    """Digest of the vocabulary, from `rllm_backend_kit.portable_renderer.tokenizer_digest`. None: not recorded."""
    temperature: float | None = None
    """Sampling temperature. The log-probs are log softmax(logits / temperature). None: not recorded."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedTrajectory:
    """A generated trajectory with its rewards."""

    uid: str
    """Uid of the episode and place in it, such as ``12.0:task-3:5/0``. It is unique in the run."""
    trajectory: Trajectory
    """The trajectory. Its `reward` is the reward after all stages."""
    reward_given: float | None
    """Reward from the workflow. None if the workflow gave none."""
    reward_used: float | None
    """Reward that estimators used. None if the trajectory was not used for training."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedEpisode:
    """A rollout, with the step and the task batch in which it was generated."""

    uid: str
    """Step, task batch, and id of the episode, such as ``12.0:task-3:5``. It is unique in the run."""
    step: int
    """Training step, from 0."""
    batch: int
    """Batch of tasks within the step, from 0."""
    episode: Episode
    trajectories: tuple[RecordedTrajectory, ...]
    """The trajectories of `episode`, in order."""
    task: Mapping[str, Any] | None = None
    """Data of the task. None: not recorded."""

    @property
    def tries(self) -> int:
        """Number of tries, failed tries included."""
        return 1 + int(self.episode.metrics.get("retries", 0.0))


@dataclass(frozen=True, kw_only=True)
class RecordedOutcome:
    """The outcome of a trajectory in a step, and the trajectory's origin."""

    outcome: Outcome
    """The outcome. Its trajectory and its peers are uids of `RecordedTrajectory`."""
    rollout_step: int
    """Step in which the trajectory was generated. It is smaller than the outcome's step if the trajectory waited."""
    batch: int
    """Task batch of `rollout_step` in which the trajectory was generated."""
    episode: str
    """Uid of its `RecordedEpisode`."""
    name: str
    """Role of the trajectory."""
    estimator: str | None = None
    """Name of the advantage estimator, or ``precomputed`` if the workflow set the advantages. None: no advantages."""
    baseline: float | None = None
    """Baseline of the reward. None if the estimator reports none."""
    advantage: float | None = None
    """Advantage of the trajectory's tokens. None if they differ."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedUpdate:
    """A policy update: its batch, and the trace of each token."""

    batch: TokenBatch
    """The batch, with `advantages` and `old_logprobs`."""
    uids: Sequence[str]
    """(n_traj of the batch,) uids of `RecordedTrajectory`."""
    rollout_steps: Sequence[int | None]
    """(n_traj of the batch,) step in which each trajectory was generated. None if a grouping created the trajectory,
    so that no recorded episode contains it."""
    objective: Mapping[str, Any]
    """The objective of the update, as JSON data. See `rllm_record.steps.accounting`."""
    trace: TokenTrace | None = None
    """Trace of each token. None if the backend records no trace."""
    optimizer_steps: Sequence[OptimizerStep] = ()
