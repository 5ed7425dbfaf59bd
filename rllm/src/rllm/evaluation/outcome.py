"""The part of a rollout that metrics need: numbers and no text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rllm_core.algorithms.columns import REWARD_ERROR
from rllm_core.data.types import Episode, Trajectory


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
        rewards=tuple((trajectory.name or "agent", _find_reward(trajectory)) for trajectory in episode.trajectories),
        metrics=dict(episode.metrics),
        termination_reason=episode.termination_reason.value,
        response_tokens=sum(trajectory.response_length for trajectory in episode.trajectories),
        reward_error=next(
            (str(each.info[REWARD_ERROR]) for each in episode.trajectories if REWARD_ERROR in each.info), ""
        ),
    )


def _find_reward(trajectory: Trajectory) -> float | None:
    """Return the trajectory's reward, or the reward of its last step if it has none."""
    reward = trajectory.reward
    if reward is None and trajectory.steps:
        reward = trajectory.steps[-1].reward
    return float(reward) if reward is not None and math.isfinite(reward) else None
