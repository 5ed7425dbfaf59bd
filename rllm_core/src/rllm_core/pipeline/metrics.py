"""Metrics of a step, under the names that users see."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rllm_core.algorithms.grouping import is_truncated
from rllm_core.algorithms.segments import deviation, mean
from rllm_core.data.batch import TokenBatch
from rllm_core.data.types import Episode, TerminationReason, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from rllm_core.contracts.train_step import TrainStep


def episode_metrics(*batches: Sequence[Episode]) -> dict[str, float]:
    """Return ``batch/…`` solve rates and shares of termination reasons, and means of the environment's metrics as
    ``env/…``.

    ``solve_none``, ``solve_all`` and ``solve_partial`` are fractions of tasks. A task that is in several rollout
    batches counts once per batch.
    """
    episodes = [episode for batch in batches for episode in batch]
    if not episodes:
        return {}
    solves = [np.mean(values) for batch in batches for values in solved_by_task(batch).values()]
    metrics = {
        "batch/solved": float(np.mean([episode.is_correct for episode in episodes])),
        "batch/solve_none": float(np.mean([share == 0 for share in solves])),
        "batch/solve_all": float(np.mean([share == 1 for share in solves])),
        "batch/solve_partial": float(np.mean([0 < share < 1 for share in solves])),
        "batch/episodes": float(len(episodes)),
    }
    for reason in TerminationReason:
        count = sum(episode.termination_reason is reason for episode in episodes)
        metrics[f"batch/ended_{reason.value}"] = count / len(episodes)
    metrics |= _response_lengths([trajectory for episode in episodes for trajectory in episode.trajectories])
    return metrics | {f"env/{name}": value for name, value in mean_episode_metrics(episodes).items()}


def _response_lengths(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return ``response_length/{mean,max}`` in tokens per trajectory, and ``truncated``, the share with a cut-off last
    response."""
    sampled = [trajectory for trajectory in trajectories if trajectory.steps]
    if not sampled:
        return {}
    lengths = [trajectory.response_length for trajectory in sampled]
    return {
        "response_length/mean": float(np.mean(lengths)),
        "response_length/max": float(max(lengths)),
        "response_length/truncated": float(np.mean([is_truncated(trajectory) for trajectory in sampled])),
    }


def mean_episode_metrics(episodes: Iterable[Episode]) -> dict[str, float]:
    """Return the mean over episodes of each metric that the environment reported."""
    values: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        for name, value in episode.metrics.items():
            values[name].append(float(value))
    return {name: float(np.mean(seen)) for name, seen in sorted(values.items())}


def solved_by_task(episodes: Iterable[Episode]) -> dict[str, list[bool]]:
    """Return for each task id a list that is True for each correct rollout."""
    solved: dict[str, list[bool]] = defaultdict(list)
    for episode in episodes:
        solved[episode.task_id].append(episode.is_correct)
    return dict(solved)


def reward_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Return ``reward/<role>/{mean,std,max,min}`` over trajectories."""
    rewards: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        rewards[group.group_role].extend(float(trajectory.reward or 0.0) for trajectory in group.trajectories)
    metrics: dict[str, float] = {}
    for role, values in rewards.items():
        metrics |= _spread(f"reward/{role}", np.array(values))
    return metrics


def advantage_metrics(batch: TokenBatch) -> dict[str, float]:
    """Return ``advantage/<role>/{mean,std,max,min,fraction_zero}`` over sampled tokens."""
    assert batch.advantages is not None
    metrics: dict[str, float] = {}
    token_roles = np.repeat(batch.role, batch.row_lengths)
    for index, role in enumerate(batch.roles):
        # Computed in float64, because the square of 1e20 is infinite in float32.
        column = batch.advantages[batch.loss_mask & (token_roles == index)].astype(np.float64)
        if not column.size:
            continue
        metrics |= _spread(f"advantage/{role}", column)
        metrics[f"advantage/{role}/fraction_zero"] = float((column == 0).mean())
    return metrics


def staleness_metrics(batch: TokenBatch, weight_version: int) -> dict[str, float]:
    """Return ``staleness/{mean,max,share}`` over sampled tokens: the number of updates since their weights.

    Args:
        batch: a batch with at least one sampled token.
        weight_version: number of updates so far.
    """
    staleness = weight_version - batch.versions[batch.loss_mask]
    return {
        "staleness/mean": float(staleness.mean()),
        "staleness/max": float(staleness.max()),
        "staleness/share": float((staleness > 0).mean()),
    }


def _spread(name: str, values: NDArray[np.float64]) -> dict[str, float]:
    """Return ``<name>/{mean,std,max,min}`` of (n,) values, n > 0."""
    return {
        f"{name}/mean": mean(values),
        f"{name}/std": deviation(values),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }


def find_reward(trajectory: Trajectory) -> float | None:
    """Return the trajectory's reward or, if it is None, the last step's reward. None if it is missing, NaN or
    infinite."""
    reward = trajectory.reward
    if reward is None and trajectory.steps:
        reward = trajectory.steps[-1].reward
    return float(reward) if reward is not None and math.isfinite(reward) else None


def throughput_metrics(step: TrainStep) -> dict[str, float]:
    """Return ``time/<stage>`` in seconds, and sampled tokens per second of the whole step.

    ``time/step`` excludes the seconds in which training ran concurrently (``time/generated_ahead``).
    """
    seconds = sum(step.timing_dict.values()) - step.generated_ahead
    sampled = sum(trajectory.response_length for episode in step.generated for trajectory in episode.trajectories)
    metrics = {f"time/{stage}": value for stage, value in step.timing_dict.items()}
    if step.generated_ahead:
        metrics["time/generated_ahead"] = step.generated_ahead
    metrics["time/step"] = seconds
    return metrics | {"time/tokens_per_second": sampled / seconds if seconds else 0.0}
