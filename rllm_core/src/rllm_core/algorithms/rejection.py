"""The core's rejection modes: keep all, wait for partly solved tasks, or drop groups without signal."""

from __future__ import annotations

from typing import Any

from rllm_core.algorithms.options import EpisodeRejectionParams, GroupRejectionParams
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.rejection import RejectionResult
from rllm_core.data import codec
from rllm_core.data.types import TrajectoryGroup
from rllm_core.errors import PipelineError

ByReason = dict[str, list[TrajectoryGroup]]


class _Stateless:
    """A mode that stores nothing between steps."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class KeepAll(_Stateless):
    """Mode ``none``: every group is trained on, including groups with one trajectory."""

    def __init__(self, params: NoParams) -> None:
        pass

    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        return RejectionResult(train=groups)


class WaitForPartialSolves:
    """Mode ``episode``: collects groups over steps until enough tasks are partly solved, then trains on all of them.

    A task is partly solved if some, but not all, of its collected rollouts are correct.
    """

    def __init__(self, params: EpisodeRejectionParams) -> None:
        self._needed = params.min_partial_solve_tasks
        self._gathered: list[TrajectoryGroup] = []

    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        self._gathered.extend(groups)
        if len(partly_solved_tasks(self._gathered)) < self._needed:
            return RejectionResult(train=[], waiting=tuple(self._gathered))
        ready, self._gathered = self._gathered, []
        return RejectionResult(train=ready)

    def state_dict(self) -> dict[str, Any]:
        return {"gathered": [codec.group_to_json(group) for group in self._gathered]} if self._gathered else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._gathered = [codec.group_from_json(group) for group in state.get("gathered", [])]


class DropWithoutSignal(_Stateless):
    """Mode ``group``: drops groups that are too small or whose rewards are all equal, with the reason."""

    def __init__(self, params: GroupRejectionParams) -> None:
        self._smallest = params.min_trajs_per_group

    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        train, dropped = with_signal(groups, self._smallest)
        return RejectionResult(train=train, dropped=dropped)


def with_signal(groups: list[TrajectoryGroup], smallest: int) -> tuple[list[TrajectoryGroup], ByReason]:
    """Return groups of at least `smallest` trajectories whose rewards differ, and the other groups by reason."""
    by_reason: ByReason = {}
    for group in groups:
        by_reason.setdefault(_why_drop(group, smallest), []).append(group)
    return by_reason.pop("", []), by_reason


def _why_drop(group: TrajectoryGroup, smallest: int) -> str:
    if len(group.trajectories) < smallest:
        return "too_few"
    if len({trajectory.reward for trajectory in group.trajectories}) > 1:
        return ""
    solved = {bool(entry.get("is_correct")) for entry in group.metadata}
    if solved == {True}:
        return "all_solved"
    return "all_failed" if solved == {False} else "equal_rewards"


def partly_solved_tasks(groups: list[TrajectoryGroup]) -> set[str]:
    """Return ids of tasks for which some, but not all, rollouts in these groups are correct.

    Raises:
        PipelineError: a group has no task ids in its metadata.
    """
    outcomes: dict[str, set[bool]] = {}
    for group in groups:
        if not group.metadata or any("task_id" not in entry for entry in group.metadata):
            raise PipelineError(
                "bad-grouping-result",
                f"Group {group.group_id!r} has no `task_id` in its metadata, which rejection mode `episode` reads.",
                "In the grouping, add `rllm_core.algorithms.grouping.describe(episode)` for each trajectory.",
            )
        for entry in group.metadata:
            outcomes.setdefault(entry["task_id"], set()).add(bool(entry.get("is_correct")))
    return {task_id for task_id, seen in outcomes.items() if len(seen) == 2}
