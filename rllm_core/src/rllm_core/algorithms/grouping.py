"""The core's groupings: the rules that decide which trajectories are compared with each other.

A group's role is the part of its id after the last colon (`TrajectoryGroup.group_role`). It determines the group's
estimator and loss. Groups with several roles, and groups whose id has no colon, have the role `MIXED_ROLES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rllm_core.contracts.grouping import MIXED_ROLES
from rllm_core.contracts.plugin import NoParams
from rllm_core.data.types import Episode, Trajectory, TrajectoryGroup

EVERY_TASK = "every_task"
"""Used instead of a task id in the ids of groups with trajectories of several tasks."""


def by_task_and_role(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    """Group all rollouts of one role at one task. The id is ``"{task_id}:{trajectory.name}"``."""
    return _grouped(episodes, lambda episode, trajectory: (episode.task_id, trajectory.name))


def by_task(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    """Group all rollouts of one task, of any role. The id is ``"{task_id}:all_groups"``."""
    return _grouped(episodes, lambda episode, trajectory: (episode.task_id, MIXED_ROLES))


def by_role(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    """Group all trajectories of one role, over all tasks of the step. The id is ``"every_task:{trajectory.name}"``."""
    return _grouped(episodes, lambda episode, trajectory: (EVERY_TASK, trajectory.name))


def by_episode(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    """Group the trajectories of one rollout, of any role. The id is ``"{task_id}:{rollout_idx}:all_groups"``."""
    return _grouped(episodes, lambda episode, trajectory: (episode.id, MIXED_ROLES))


def describe(episode: Episode) -> dict[str, Any]:
    """Return the metadata entry for a trajectory of this episode."""
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
    """Return one group per key, in order of first appearance. A key is a pair of a task or episode id and a role."""
    # Grouped by key and not by id, because task "a:b" in role "c" and task "a" in role "b:c" must not share a group.
    groups: dict[tuple[str, str], TrajectoryGroup] = {}
    for episode in episodes:
        for trajectory in episode.trajectories:
            key = key_of(episode, trajectory)
            group = groups.setdefault(key, TrajectoryGroup(group_id=":".join(key), trajectories=[]))
            group.trajectories.append(trajectory)
            group.metadata.append(describe(episode))
    return list(groups.values())
