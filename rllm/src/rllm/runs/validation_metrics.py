"""Metrics of a validation, under the names that users see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import comb

import numpy as np

from rllm_core.algorithms.segments import mean
from rllm_core.data.types import Episode
from rllm_core.pipeline.metrics import find_reward, mean_episode_metrics, solved_by_task


def validation_metrics(episodes: Sequence[Episode], rollouts: int) -> dict[str, float]:
    """Return ``val/<data_source>/pass@1`` and ``pass@<rollouts>``, mean reward, and the environment's own metrics.

    ``reward`` is the mean over trajectories. If the trajectories have several roles, ``reward/<role>`` is the mean of
    one role.
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
            by_role[trajectory.name or "agent"].append(find_reward(trajectory))
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


def split_validation_name(name: str) -> tuple[str, str]:
    """Split a metric's name. ``val/openai/gsm8k/pass@1`` is the metric ``pass@1`` of the data source ``openai/gsm8k``.

    A metric of one role, such as ``reward/judge``, keeps its role.
    """
    source, _, metric = name.removeprefix("val/").rpartition("/")
    if source.endswith("/reward"):
        return source.removesuffix("/reward"), f"reward/{metric}"
    return source, metric


def pass_at_k(rollouts: int, correct: int, k: int) -> float:
    """Return the unbiased probability that at least one of `k` rollouts is correct (Chen et al. 2021,
    arXiv:2107.03374)."""
    if k > rollouts:
        return float(correct > 0)
    return 1.0 - comb(rollouts - correct, k) / comb(rollouts, k)
