"""Advantages of every trajectory of a step under each setup, and counts over the sampled tokens of all steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rllm_core.algorithms.magnitudes import deviation, mean
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import TokenBatch
from rllm_core.data.types import TrajectoryGroup

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Member:
    """A trajectory of a group, by name."""

    episode: str
    """``"{task_id}:{rollout_idx}"``."""
    uid: str
    """As the workflow gave it, ``"{episode}/{role}"`` for example; may be empty."""

    @property
    def name(self) -> str:
        """For people."""
        return self.uid or self.episode


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredGroup:
    """A group of one step with its advantages under each setup."""

    step: int
    group_id: str
    role: str
    members: tuple[Member, ...]
    """(n,)"""
    rewards: Floats
    """(n,)"""
    lengths: NDArray[np.int64]
    """(n,) tokens the model sampled."""
    turns: NDArray[np.int64]
    """(n,) steps of each trajectory."""
    advantages: Floats
    """(n_setup, n) mean over the trajectory's sampled tokens; NaN where it has none."""
    deviations: Floats
    """(n_setup, n) standard deviation (ddof 0) over the trajectory's sampled tokens; NaN where it has none."""
    signal: NDArray[np.bool_]
    """(n_setup,) whether any token's advantage is not exactly 0."""

    @property
    def reward_mean(self) -> float:
        return mean(self.rewards)

    @property
    def reward_std(self) -> float:
        """ddof 0."""
        return deviation(self.rewards)

    @property
    def name(self) -> str:
        """For people: ``'task:agent' of step 3``."""
        return f"{self.group_id!r} of step {self.step}"


def scored_groups(step: TrainStep, columns: NDArray[np.float32]) -> list[ScoredGroup]:
    """The groups of a step that has a batch.

    Args:
        step: replayed as far as its batch.
        columns: (n_setup, n_token) advantages.
    """
    batch = step.filled_batch
    means, deviations = _per_trajectory(batch, columns)
    episodes = {id(trajectory): episode.id for episode in step.generated for trajectory in episode.trajectories}
    groups: list[ScoredGroup] = []
    start = 0
    for group in batch.groups:
        trajectories = group.trajectories
        own = slice(start, start + len(trajectories))
        start = own.stop
        groups.append(
            ScoredGroup(
                step=step.global_step,
                group_id=group.group_id,
                role=group.group_role,
                members=_members(group, episodes),
                rewards=np.array([entry.reward for entry in trajectories], np.float64),
                lengths=np.array([entry.response_length for entry in trajectories], np.int64),
                turns=np.array([len(entry.steps) for entry in trajectories], np.int64),
                advantages=means[:, own],
                deviations=deviations[:, own],
                signal=np.any((np.abs(means[:, own]) > 0) | (deviations[:, own] > 0), axis=1),
            )
        )
    return groups


def _members(group: TrajectoryGroup, episodes: Mapping[int, str]) -> tuple[Member, ...]:
    """Groups that waited since an earlier step have episodes that are not among this step's."""
    described = group.metadata or [{}] * len(group.trajectories)
    return tuple(
        Member(
            episode=episodes.get(id(entry)) or f"{about.get('task_id', '?')}:{about.get('rollout_idx', '?')}",
            uid=entry.uid,
        )
        for entry, about in zip(group.trajectories, described, strict=True)
    )


def _per_trajectory(batch: TokenBatch, columns: NDArray[np.float32]) -> tuple[Floats, Floats]:
    """(n_setup, n_traj) means and standard deviations over sampled tokens; NaN where there are none.

    The mean of equal float32 numbers is exactly that number, since their sum fits into a float64.
    """
    owners = np.repeat(batch.trajectory, batch.row_lengths)[batch.loss_mask]
    sampled = columns[:, batch.loss_mask].astype(np.float64)
    counts = np.bincount(owners, minlength=batch.n_trajectories).astype(np.float64)
    counts[counts == 0] = np.nan

    def mean(values: Floats) -> Floats:
        return np.stack([np.bincount(owners, row, minlength=batch.n_trajectories) for row in values]) / counts

    means = mean(sampled)
    return means, np.sqrt(mean((sampled - means[:, owners]) ** 2))


@dataclass(kw_only=True, eq=False)
class TokenTally:
    """Sampled tokens of one role over all steps, and how many change their sign against the first setup."""

    n_setup: int
    tokens: int = 0
    zero: NDArray[np.int64] = field(init=False)
    """(n_setup,) tokens whose advantage is 0."""
    changed: NDArray[np.int64] = field(init=False)
    """(n_setup,)"""

    def __post_init__(self) -> None:
        self.zero, self.changed = np.zeros((2, self.n_setup), np.int64)

    def add(self, columns: NDArray[np.float32]) -> None:
        """Count (n_setup, n_sampled) advantages."""
        signs = np.sign(columns)
        self.tokens += columns.shape[1]
        self.zero += (signs == 0).sum(axis=1)
        self.changed += (signs != signs[0]).sum(axis=1)


@dataclass(kw_only=True)
class LossTally:
    """Effect of one loss on one role's tokens under one setup: d (sum of token losses) / d log-prob of a token."""

    steps: int = 0
    tokens: int = 0
    loss_sum: float = 0.0
    gradient_sum: float = 0.0
    zero: int = 0
    """Tokens without a gradient."""
    silenced: int = 0
    """Tokens without a gradient though their advantage is not 0: clipped or masked."""

    def add(self, loss: float, gradients: NDArray[np.float64], advantages: NDArray[np.float32]) -> None:
        """Add one step: its aggregated loss, and (n_sampled,) gradients and advantages."""
        still = gradients == 0
        self.steps += 1
        self.tokens += len(gradients)
        self.loss_sum += loss
        self.gradient_sum += float(np.abs(gradients).sum())
        self.zero += int(still.sum())
        self.silenced += int((still & (advantages != 0)).sum())

    @property
    def loss(self) -> float:
        """Role's part of a step's loss, aggregated with `rllm.algorithm.loss_agg_mode`. Mean over steps."""
        return self.loss_sum / self.steps

    @property
    def mean_gradient(self) -> float:
        """Mean absolute value over tokens."""
        return self.gradient_sum / self.tokens


LossTallies = dict[tuple[str, str, str], LossTally]
"""By role, label of the setup and label of the loss."""


def tally_tokens(batch: TokenBatch, columns: NDArray[np.float32], tallies: dict[str, TokenTally]) -> None:
    """Count the sampled tokens of every role of a batch."""
    roles = np.repeat(batch.role, batch.row_lengths)
    for index, role in enumerate(batch.roles):
        tally = tallies.setdefault(role, TokenTally(n_setup=len(columns)))
        tally.add(columns[:, batch.loss_mask & (roles == index)])
