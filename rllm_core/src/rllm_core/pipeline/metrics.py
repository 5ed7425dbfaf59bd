"""Figures of a step or a validation, under the names users see."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import comb
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rllm_core.algorithms.filtering import is_truncated
from rllm_core.algorithms.magnitudes import deviation, mean
from rllm_core.data.batch import TokenBatch
from rllm_core.data.types import Episode, TerminationReason, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from rllm_core.contracts.train_step import TrainStep


def episode_metrics(*rounds: Sequence[Episode]) -> dict[str, float]:
    """``batch/…`` solve rates and ways of ending, and means of the environment's own figures as ``env/…``.

    ``solve_none``, ``solve_all`` and ``solve_partial`` are fractions of tasks; one that is played in several rounds
    counts as several.
    """
    episodes = [episode for played in rounds for episode in played]
    if not episodes:
        return {}
    solves = [np.mean(values) for played in rounds for values in solved_by_task(played).values()]
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
    """``response_length/{mean,max}`` in tokens per trajectory; ``truncated``, the share with a last reply cut off."""
    played = [trajectory for trajectory in trajectories if trajectory.steps]
    if not played:
        return {}
    lengths = [trajectory.response_length for trajectory in played]
    return {
        "response_length/mean": float(np.mean(lengths)),
        "response_length/max": float(max(lengths)),
        "response_length/truncated": float(np.mean([is_truncated(trajectory) for trajectory in played])),
    }


def mean_episode_metrics(episodes: Iterable[Episode]) -> dict[str, float]:
    """Mean over episodes of each figure that the environment reported."""
    values: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        for name, value in episode.metrics.items():
            values[name].append(float(value))
    return {name: float(np.mean(seen)) for name, seen in sorted(values.items())}


def solved_by_task(episodes: Iterable[Episode]) -> dict[str, list[bool]]:
    """Task id to whether each of its attempts is correct."""
    solved: dict[str, list[bool]] = defaultdict(list)
    for episode in episodes:
        solved[episode.task_id].append(episode.is_correct)
    return dict(solved)


def reward_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """``reward/<role>/{mean,std,max,min}`` over trajectories."""
    rewards: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        rewards[group.group_role].extend(float(trajectory.reward or 0.0) for trajectory in group.trajectories)
    metrics: dict[str, float] = {}
    for role, values in rewards.items():
        metrics |= _spread(f"reward/{role}", np.array(values))
    return metrics


def advantage_metrics(batch: TokenBatch) -> dict[str, float]:
    """``advantage/<role>/{mean,std,max,min,fraction_zero}`` over sampled tokens."""
    assert batch.advantages is not None
    metrics: dict[str, float] = {}
    token_roles = np.repeat(batch.role, batch.row_lengths)
    for index, role in enumerate(batch.roles):
        # In float64: the square of 1e20 is infinite in float32.
        column = batch.advantages[batch.loss_mask & (token_roles == index)].astype(np.float64)
        if not column.size:
            continue
        metrics |= _spread(f"advantage/{role}", column)
        metrics[f"advantage/{role}/fraction_zero"] = float((column == 0).mean())
    return metrics


def staleness_metrics(batch: TokenBatch, weight_version: int) -> dict[str, float]:
    """``staleness/{mean,max,share}`` over sampled tokens: updates since the weights that sampled them.

    Args:
        batch: with at least one sampled token.
        weight_version: updates made so far.
    """
    staleness = weight_version - batch.versions[batch.loss_mask]
    return {
        "staleness/mean": float(staleness.mean()),
        "staleness/max": float(staleness.max()),
        "staleness/share": float((staleness > 0).mean()),
    }


def _spread(name: str, values: NDArray[np.float64]) -> dict[str, float]:
    """``<name>/{mean,std,max,min}`` of (n,) values, n > 0."""
    return {
        f"{name}/mean": mean(values),
        f"{name}/std": deviation(values),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }


def validation_metrics(episodes: Sequence[Episode], rollouts: int) -> dict[str, float]:
    """``val/<data_source>/pass@1`` and ``pass@<rollouts>``, mean reward, and the environment's own figures.

    ``reward`` is the mean over trajectories; where they have several roles, ``reward/<role>`` is that of each.
    """
    by_source: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        by_source[episode.data_source].append(episode)
    metrics: dict[str, float] = {}
    for source, part in by_source.items():
        solved = list(solved_by_task(part).values())
        for k in sorted({1, rollouts}):
            metrics[f"val/{source}/pass@{k}"] = float(np.mean([pass_at_k(len(s), sum(s), k) for s in solved]))
        by_role: dict[str, list[float | None]] = defaultdict(list)
        for trajectory in (trajectory for episode in part for trajectory in episode.trajectories):
            by_role[trajectory.name or "agent"].append(reward_of(trajectory))
        rewards = [reward for of_role in by_role.values() for reward in of_role]
        rewards_by_name = {"reward": rewards}
        if len(by_role) > 1:
            rewards_by_name |= {f"reward/{role}": of_role for role, of_role in by_role.items()}
        for name, values in rewards_by_name.items():
            if usable := [value for value in values if value is not None]:
                metrics[f"val/{source}/{name}"] = mean(np.array(usable))
        if None in rewards:
            metrics[f"val/{source}/missing_rewards"] = float(rewards.count(None))
        metrics |= {f"val/{source}/{name}": value for name, value in mean_episode_metrics(part).items()}
    return metrics


def reward_of(trajectory: Trajectory) -> float | None:
    """The trajectory's reward, else that of its last step; None when it is missing, NaN or infinite."""
    reward = trajectory.reward
    if reward is None and trajectory.steps:
        reward = trajectory.steps[-1].reward
    return float(reward) if reward is not None and math.isfinite(reward) else None


def split_validation_name(name: str) -> tuple[str, str]:
    """``val/openai/gsm8k/pass@1`` is the figure ``pass@1`` of the data source ``openai/gsm8k``.

    A figure of one role, such as ``reward/judge``, keeps its role.
    """
    source, _, metric = name.removeprefix("val/").rpartition("/")
    if source.endswith("/reward"):
        return source.removesuffix("/reward"), f"reward/{metric}"
    return source, metric


def pass_at_k(rollouts: int, correct: int, k: int) -> float:
    """Unbiased chance that at least one of `k` attempts is correct (Chen et al. 2021, arXiv:2107.03374)."""
    if k > rollouts:
        return float(correct > 0)
    return 1.0 - comb(rollouts - correct, k) / comb(rollouts, k)


def throughput_metrics(step: TrainStep) -> dict[str, float]:
    """``time/<stage>`` seconds, and tokens sampled per second of the whole step.

    ``time/step`` leaves out the seconds in which training did something else (``time/played_ahead``).
    """
    seconds = sum(step.timing_dict.values()) - step.generated_ahead
    sampled = sum(trajectory.response_length for episode in step.generated for trajectory in episode.trajectories)
    metrics = {f"time/{stage}": value for stage, value in step.timing_dict.items()}
    if step.generated_ahead:
        metrics["time/played_ahead"] = step.generated_ahead
    metrics["time/step"] = seconds
    return metrics | {"time/tokens_per_second": sampled / seconds if seconds else 0.0}
