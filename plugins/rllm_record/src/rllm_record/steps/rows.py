"""What the record of a step holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllm_core.data.batch import TokenBatch
from rllm_core.data.record import OptimizerStep, Outcome, TokenTrace
from rllm_core.data.types import Episode, Trajectory


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """What sampled the tokens of a file."""

    tokenizer: str | None = None
    """Digest of its vocabulary, `rllm_backend_kit.portable_renderer.tokenizer_digest`; None: not recorded."""
    temperature: float | None = None
    """What logits were divided by before log-probs were taken of them; None: not recorded."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlayedTrajectory:
    """A trajectory as it was played and judged."""

    uid: str
    """Uid of its episode, and its place in it: ``12.0:task-3:5/0``. No other trajectory of the run has it."""
    trajectory: Trajectory
    """Its `reward` is what stages left."""
    reward_given: float | None
    """As the workflow gave it; None: it gave none."""
    reward_used: float | None
    """As estimators saw it; None: it did not get that far."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlayedEpisode:
    """An attempt, with the step and the round in which it was played."""

    uid: str
    """Step, round, and id of the episode: ``12.0:task-3:5``. No other episode of the run has it."""
    step: int
    """Training step, from 0."""
    round: int
    """Batch of tasks within the step, from 0."""
    episode: Episode
    trajectories: tuple[PlayedTrajectory, ...]
    """Those of `episode`, in order."""
    task: Mapping[str, Any] | None = None
    """Data of its task; None: not recorded."""

    @property
    def tries(self) -> int:
        """How often it was played, failed tries included."""
        return 1 + int(self.episode.metrics.get("retries", 0.0))


@dataclass(frozen=True, kw_only=True)
class RecordedOutcome:
    """What became of a trajectory in a step, with where it comes from."""

    outcome: Outcome
    """Its trajectory, and its peers, are uids of `PlayedTrajectory`."""
    played_step: int
    """Step in which it was played; smaller than the step of the fate where it has waited."""
    round: int
    """Round in which it was played."""
    episode: str
    """Uid of its `PlayedEpisode`."""
    name: str
    """Its role."""
    estimator: str | None = None
    """Name of what estimated its advantages, ``precomputed`` where its workflow brought them; None: nothing did."""
    baseline: float | None = None
    """What its reward was compared with, where the estimator says so."""
    advantage: float | None = None
    """Of its tokens, where all have the same."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedUpdate:
    """A policy update: the batch that it trained on, and what it did with each token."""

    batch: TokenBatch
    """With `advantages` and `old_logprobs`."""
    uids: Sequence[str]
    """(n_traj of the batch,) uids of `PlayedTrajectory`."""
    played_steps: Sequence[int | None]
    """(n_traj of the batch,) where each was played; None: a grouping has made it, and no record of episodes has it."""
    objective: Mapping[str, Any]
    """What the loss is made of, as JSON data; see `rllm_record.steps.objective`."""
    trace: TokenTrace | None = None
    """None: the backend traces nothing."""
    optimizer_steps: Sequence[OptimizerStep] = ()
