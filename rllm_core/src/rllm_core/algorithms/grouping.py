"""The core's groupings: which trajectories are compared with each other.

The role of a group is what follows the last colon of its id (`TrajectoryGroup.group_role`), and says which estimator
and loss it gets. Groups that mix roles have the role `MIXED_ROLES`, as groups whose id has no colon do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rllm_core.contracts.grouping import MIXED_ROLES
from rllm_core.contracts.plugin import NoParams
from rllm_core.data.types import Episode, Trajectory, TrajectoryGroup

EVERY_TASK = "every_task"
"""In the place of a task's id, in ids of groups that hold trajectories of several tasks."""


def by_task_and_role(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    """All attempts of one role at one task; the id is ``"{task_id}:{trajectory.name}"``."""
    return _grouped(episodes, lambda episode, trajectory: (episode.task_id, trajectory.name))


def by_task(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    """All attempts at one task, whatever their role; the id is ``"{task_id}:all_groups"``."""
    return _grouped(episodes, lambda episode, trajectory: (episode.task_id, MIXED_ROLES))


def by_role(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    """All trajectories of one role, over all tasks of the step; the id is ``"every_task:{trajectory.name}"``."""
    return _grouped(episodes, lambda episode, trajectory: (EVERY_TASK, trajectory.name))


def by_episode(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    """The trajectories of one attempt, whatever their role; the id is ``"{task_id}:{rollout_idx}:all_groups"``."""
    return _grouped(episodes, lambda episode, trajectory: (episode.id, MIXED_ROLES))


def describe(episode: Episode) -> dict[str, Any]:
    """The metadata entry of a trajectory of this episode."""
    return {
        "task_id": episode.task_id,
        "rollout_idx": episode.rollout_idx,
        "is_correct": bool(episode.is_correct),
        "termination_reason": episode.termination_reason.value,
        "data_source": episode.data_source,
    }


def _grouped(
    episodes: Sequence[Episode], key_of: Callable[[Episode, Trajectory], tuple[str, str]]
) -> list[TrajectoryGroup]:
    """One group per key ``(what is compared, role)``, in order of first appearance."""
    # By key and not by id: task "a:b" in role "c" and task "a" in role "b:c" are not to be compared.
    groups: dict[tuple[str, str], TrajectoryGroup] = {}
    for episode in episodes:
        for trajectory in episode.trajectories:
            key = key_of(episode, trajectory)
            group = groups.setdefault(key, TrajectoryGroup(group_id=":".join(key), trajectories=[]))
            group.trajectories.append(trajectory)
            group.metadata.append(describe(episode))
    return list(groups.values())
