"""The default grouping: all attempts of one role at one task are compared with each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rllm_core.contracts.plugin import NoParams
from rllm_core.types import Episode, TrajectoryGroup


def by_task_and_role(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    """One group per ``"{task_id}:{trajectory.name}"``, in order of first appearance."""
    groups: dict[str, TrajectoryGroup] = {}
    for episode in episodes:
        for trajectory in episode.trajectories:
            group_id = f"{episode.task_id}:{trajectory.name}"
            group = groups.setdefault(group_id, TrajectoryGroup(group_id=group_id, trajectories=[]))
            group.trajectories.append(trajectory)
            group.metadata.append(describe(episode))
    return list(groups.values())


def describe(episode: Episode) -> dict[str, Any]:
    """The metadata entry of a trajectory of this episode."""
    return {
        "task_id": episode.task_id,
        "rollout_idx": episode.rollout_idx,
        "is_correct": bool(episode.is_correct),
        "termination_reason": episode.termination_reason.value,
        "data_source": episode.data_source,
    }
