"""Advantages of every trajectory of a step under each setup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.algorithms.magnitudes import deviation, mean
from rllm_core.contracts.train_step import TrainStep
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
    advantages: Floats
    """(n_setup, n) mean over the trajectory's sampled tokens; NaN where it has none."""
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
    owners = np.repeat(batch.trajectory, batch.row_lengths)[batch.loss_mask]
    sampled = columns[:, batch.loss_mask].astype(np.float64)
    means = _means(sampled, owners, batch.n_trajectories)
    has_signal = _means(sampled != 0, owners, batch.n_trajectories) > 0
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
                advantages=means[:, own],
                signal=np.asarray(has_signal[:, own].any(axis=1)),
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


def _means(values: NDArray[Any], owners: NDArray[np.int32], n_trajectories: int) -> Floats:
    """Return (n_setup, n_traj) means over the sampled tokens of each trajectory; NaN where there are none.

    The mean of equal float32 numbers is exactly that number, since their sum fits into a float64.
    """
    counts = np.bincount(owners, minlength=n_trajectories).astype(np.float64)
    counts[counts == 0] = np.nan
    return np.stack([np.bincount(owners, row, minlength=n_trajectories) for row in values]) / counts
