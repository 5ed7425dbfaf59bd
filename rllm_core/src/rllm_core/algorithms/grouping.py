"""The core's groupings: the rules that decide which trajectories are compared with each other. Rollouts are masked
before that, by termination reason or because the response was cut off.

A group's role is the part of its id after the last colon (`TrajectoryGroup.group_role`). It determines the group's
estimator and loss. Groups with several roles, and groups whose id has no colon, have the role `MIXED_ROLES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rllm_core.contracts.grouping import MIXED_ROLES
from rllm_core.contracts.params import NoParams
from rllm_core.data.types import Episode, TerminationReason, Trajectory, TrajectoryGroup
from rllm_core.schema.run_config import RllmSection

EVERY_TASK = "every_task"
"""Used instead of a task id in the ids of groups with trajectories of several tasks."""


def by_task_and_role(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    """Group all rollouts of one role at one task. The id is ``"{task_id}:{trajectory.name}"``."""
    return _group_by(episodes, lambda episode, trajectory: (episode.task_id, trajectory.name))


def by_task(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    """Group all rollouts of one task, of any role. The id is ``"{task_id}:all_groups"``."""
    return _group_by(episodes, lambda episode, trajectory: (episode.task_id, MIXED_ROLES))


def by_role(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    """Group all trajectories of one role, over all tasks of the step. The id is ``"every_task:{trajectory.name}"``."""
    return _group_by(episodes, lambda episode, trajectory: (EVERY_TASK, trajectory.name))


def by_episode(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    """Group the trajectories of one rollout, of any role. The id is ``"{task_id}:{rollout_idx}:all_groups"``."""
    return _group_by(episodes, lambda episode, trajectory: (episode.id, MIXED_ROLES))


def describe(episode: Episode) -> dict[str, Any]:
    """Return the metadata entry for a trajectory of this episode."""
    return {
        "task_id": episode.task_id,
        "rollout_idx": episode.rollout_idx,
        "is_correct": bool(episode.is_correct),
        "termination_reason": episode.termination_reason.value,
        "data_source": episode.data_source,
    }


def _group_by(
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


OVERLONG = frozenset(
    {
        TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED,
        TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED,
        TerminationReason.MAX_TURNS_EXCEEDED,
        TerminationReason.TIMEOUT,
    }
)
"""The termination reasons that `rllm.agent.overlong_filter` masks: limits of tokens, turns or time."""


def masked_reasons(settings: RllmSection) -> frozenset[TerminationReason]:
    """Return the termination reasons that `compact_filtering` or `agent.overlong_filter` mask. Empty if both are
    off."""
    masks = settings.compact_filtering
    masked = {reason for reason in TerminationReason if masks.enable and getattr(masks, f"mask_{reason.value}")}
    return frozenset(masked | (OVERLONG if settings.agent.overlong_filter else set()))


def compact_filter(
    episodes: Sequence[Episode], masked: frozenset[TerminationReason]
) -> tuple[list[Episode], Counter[str]]:
    """Return the remaining episodes, and the number of masked episodes by reason."""
    kept = [episode for episode in episodes if episode.termination_reason not in masked]
    dropped = Counter(e.termination_reason.value for e in episodes if e.termination_reason in masked)
    return kept, dropped


def drop_truncated(episodes: Sequence[Episode]) -> tuple[list[Episode], int]:
    """Return episodes without trajectories whose last response was cut off, and the number of removed trajectories.

    An episode that loses trajectories is replaced by a copy. An episode that loses all trajectories is removed.
    """
    kept = []
    for episode in episodes:
        whole = [trajectory for trajectory in episode.trajectories if not is_truncated(trajectory)]
        if whole:
            lost_none = len(whole) == len(episode.trajectories)
            kept.append(episode if lost_none else replace(episode, trajectories=whole))
    before, after = (sum(len(episode.trajectories) for episode in some) for some in (episodes, kept))
    return kept, before - after


def is_truncated(trajectory: Trajectory) -> bool:
    """Return True if the last response was cut off."""
    return bool(trajectory.steps) and trajectory.steps[-1].info.get("finish_reason") == "length"
