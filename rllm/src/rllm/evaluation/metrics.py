"""Metrics of the rollouts of one environment's tasks, and the part of a rollout that they need."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rllm.evaluation.statistics import Estimate, choose_ks, mean_reward, share
from rllm.runs.validation_metrics import pass_at_k
from rllm_core.algorithms.columns import REWARD_ERROR
from rllm_core.data.types import Episode
from rllm_core.pipeline.metrics import find_reward


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one rollout."""

    source: str
    """The task's data source."""
    task_id: str
    index: int
    """Number of the rollout among those for its task, from 0."""
    correct: bool
    rewards: tuple[tuple[str, float | None], ...]
    """Role and reward of each trajectory. A reward is None if it is missing, NaN or infinite."""
    metrics: Mapping[str, float]
    """The environment's metrics."""
    termination_reason: str
    response_tokens: int
    reward_error: str = ""
    """Why a reward is missing, if that is known."""

    @property
    def reward(self) -> float | None:
        """Mean over trajectories. None if no trajectory has a reward."""
        known = [reward for _, reward in self.rewards if reward is not None]
        return sum(known) / len(known) if known else None


def build_outcome(episode: Episode) -> Outcome:
    """Return the part of an episode that metrics need."""
    return Outcome(
        source=episode.data_source,
        task_id=episode.task_id,
        index=episode.rollout_idx,
        correct=bool(episode.is_correct),
        rewards=tuple((trajectory.name or "agent", find_reward(trajectory)) for trajectory in episode.trajectories),
        metrics=dict(episode.metrics),
        termination_reason=episode.termination_reason.value,
        response_tokens=sum(trajectory.response_length for trajectory in episode.trajectories),
        reward_error=next(
            (str(each.info[REWARD_ERROR]) for each in episode.trajectories if REWARD_ERROR in each.info), ""
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Metrics for one data source of an environment."""

    name: str
    """Name of the environment, or ``environment/source`` if it has several data sources."""
    tasks: int
    rollouts: int
    """Number of rollouts of all tasks together."""
    passes: Mapping[int, Estimate]
    """pass@k by k, for each k up to the number of rollouts that every task has."""
    reward: Estimate | None
    """Mean reward. None if no rollout has a reward."""
    role_rewards: Mapping[str, float]
    """Mean reward by role, if there are several roles."""
    missing_rewards: int
    """Number of rollouts without a reward. They count as not solved."""
    reward_error: str
    """Why the first of these rewards is missing, if that is known."""
    metrics: Mapping[str, float]
    """Means of the environment's metrics over rollouts."""
    endings: Mapping[str, float]
    """Share of rollouts by termination reason."""
    response_tokens: float
    """Mean number of sampled tokens per rollout."""


def compute_metrics(environment: str, outcomes: Iterable[Outcome]) -> list[Metrics]:
    """Return metrics for each data source, in order of first appearance."""
    by_source: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_source[outcome.source].append(outcome)
    several = len(by_source) > 1
    return [_metrics(f"{environment}/{source}" if several else environment, part) for source, part in by_source.items()]


def _metrics(name: str, outcomes: Sequence[Outcome]) -> Metrics:
    by_task: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_task[outcome.task_id].append(outcome)
    counts = [(len(tried), sum(outcome.correct for outcome in tried)) for tried in by_task.values()]
    ks = choose_ks(min(rollouts for rollouts, _ in counts))
    passes = {k: share([pass_at_k(*count, k) for count in counts], len(outcomes)) for k in ks}
    rewards = [rewards for tried in by_task.values() if (rewards := known_rewards(tried))]
    by_role: dict[str, list[float]] = defaultdict(list)
    for role, reward in (pair for outcome in outcomes for pair in outcome.rewards):
        if reward is not None:
            by_role[role].append(reward)
    reasons = Counter(outcome.termination_reason for outcome in outcomes)
    return Metrics(
        name=name,
        tasks=len(by_task),
        rollouts=len(outcomes),
        passes=passes,
        reward=mean_reward(rewards) if rewards else None,
        role_rewards={role: float(np.mean(each)) for role, each in by_role.items()} if len(by_role) > 1 else {},
        missing_rewards=sum(outcome.reward is None for outcome in outcomes),
        reward_error=next((outcome.reward_error for outcome in outcomes if outcome.reward_error), ""),
        metrics=_means(outcomes),
        endings={reason: count / len(outcomes) for reason, count in reasons.most_common()},
        response_tokens=float(np.mean([outcome.response_tokens for outcome in outcomes])),
    )


def known_rewards(outcomes: Iterable[Outcome]) -> list[float]:
    """Return the rewards that are not missing."""
    return [outcome.reward for outcome in outcomes if outcome.reward is not None]


def _means(outcomes: Iterable[Outcome]) -> dict[str, float]:
    values: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        for name, value in outcome.metrics.items():
            values[name].append(value)
    return {name: float(np.mean(seen)) for name, seen in sorted(values.items())}
