"""Fixtures with recorded episodes in a run directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from rllm_core.data.types import Episode, TerminationReason, Trajectory
from rllm_record.steps import RecordedEpisode, RecordedTrajectory, StepFiles

Rewards = Mapping[str, Sequence[float | None]]


def episodes_of(
    rewards: Rewards,
    *,
    lengths: Mapping[str, Sequence[int]] | None = None,
    turns: int = 1,
    advantage: float | None = None,
    greedy: Mapping[str, float] | None = None,
    roles: Sequence[str] = ("agent",),
    reason: TerminationReason = TerminationReason.ENV_DONE,
    logprobs_known: bool = True,
) -> list[Episode]:
    """Rollouts of each task with these rewards; every role of a rollout has the same."""
    episodes = []
    for task, values in rewards.items():
        for index, reward in enumerate(values):
            said = lengths[task][index] if lengths else 2
            trajectories = []
            for role in roles:
                trajectory = Trajectory(role, reward=reward, uid=f"{task}:{index}/{role}")
                if task in (greedy or {}):
                    trajectory.info["greedy_reward"] = greedy[task]
                logprobs = np.linspace(-1.0, -0.5, said) if logprobs_known else None
                for turn in range(turns):
                    trajectory.add_step([1, 2, turn], [3] * said, logprobs, advantage=advantage)
                trajectories.append(trajectory)
            episodes.append(
                Episode(
                    id=f"{task}:{index}",
                    trajectories=trajectories,
                    is_correct=bool(reward),
                    termination_reason=reason,
                )
            )
    return episodes


@pytest.fixture
def episodes() -> Callable[..., list[Episode]]:
    return episodes_of


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a started run. `configure` sets its config."""
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "config.yaml").write_text("rllm: {algorithm: {adv_estimator: grpo}}\n")
    return directory


def record_rollouts(step: int, batch: int, episodes: Sequence[Episode]) -> list[RecordedEpisode]:
    return [
        RecordedEpisode(
            uid=f"{step}.{batch}:{episode.id}",
            step=step,
            batch=batch,
            episode=episode,
            trajectories=tuple(
                RecordedTrajectory(uid=each.uid, trajectory=each, reward_given=each.reward, reward_used=each.reward)
                for each in episode.trajectories
            ),
            task={"name": episode.task_id},
        )
        for episode in episodes
    ]


@pytest.fixture
def keep(run: Path) -> Callable[..., Path]:
    """Record a step's episodes, one mapping of rewards for each rollout batch, and return the file."""

    def keep(step: int, *batches: Rewards, content: Literal["outcomes", "tokens"] = "tokens", **options: Any) -> Path:
        rollouts = [
            record_rollouts(step, batch, episodes_of(rewards, **options)) for batch, rewards in enumerate(batches)
        ]
        StepFiles(run / "record").write(step, [*chain(*rollouts)], [], content)
        return run / "record" / "episodes" / f"step_{step:06d}.parquet"

    return keep
