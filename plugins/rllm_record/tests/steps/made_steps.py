"""Training steps after all stages."""

from __future__ import annotations

from typing import Any

from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import Episode, Step, Task, TerminationReason, Trajectory, TrajectoryGroup


def rollout(id: str, reward: float | None = 0.0, *names: str) -> Episode:
    """Return an episode with one trajectory per name."""
    trajectories = [
        Trajectory(name, [Step([1, 2], [3, 4], [-1.0, -0.5], text="three four")], reward, uid=f"{id}/{name}")
        for name in names or ("agent",)
    ]
    return Episode(
        id=id, trajectories=trajectories, is_correct=reward == 1.0, termination_reason=TerminationReason.ENV_DONE
    )


def group(id: str, *episodes: Episode) -> TrajectoryGroup:
    return TrajectoryGroup(group_id=id, trajectories=[each for episode in episodes for each in episode.trajectories])


def step(number: int, generated: list[Episode], trained: list[TrajectoryGroup], **fields: Any) -> TrainStep:
    given: dict[str, Any] = {"epoch": 0, "total_steps": 10, "tasks": [Task(id="t")]}
    return TrainStep(global_step=number, generated=generated, trajectory_groups=trained, **(given | fields))
