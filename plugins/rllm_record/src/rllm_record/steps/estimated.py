"""Estimator, baseline and advantage of each trajectory of a batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rllm_core.contracts.train_step import TrainStep


class Estimate(NamedTuple):
    """The columns of `RecordedOutcome` about a trajectory's advantage."""

    estimator: str | None = None
    baseline: float | None = None
    advantage: float | None = None


def estimates_of(step: TrainStep) -> dict[int, Estimate]:
    """Return the estimates of a step's batch, by Python ``id`` of the trajectory."""
    batch = step.batch
    if batch is None or batch.advantages is None or not step.estimators:
        return {}
    sampled = batch.loss_mask
    owners = np.repeat(batch.trajectory, batch.row_lengths)[sampled]
    advantages = batch.advantages[sampled]
    # The tokens of a trajectory are contiguous.
    first = np.flatnonzero(np.diff(owners, prepend=-1))
    equal = np.zeros(batch.n_trajectories, np.bool_)
    value = np.zeros(batch.n_trajectories)
    if len(first):
        value[owners[first]] = advantages[first]
        equal[owners[first]] = np.minimum.reduceat(advantages, first) == np.maximum.reduceat(advantages, first)
    values = [float(one) if same else None for one, same in zip(value, equal, strict=True)]
    told = [None] * len(values) if step.baselines is None else [None if b != b else b for b in step.baselines.tolist()]
    names = [name for group, name in zip(batch.groups, step.estimators, strict=True) for _ in group.trajectories]
    trajectories = (each for group in batch.groups for each in group.trajectories)
    estimates = map(Estimate, names, told, values)
    return {id(trajectory): estimate for trajectory, estimate in zip(trajectories, estimates, strict=True)}
