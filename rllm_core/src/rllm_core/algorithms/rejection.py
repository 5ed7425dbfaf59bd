"""The core's rejection modes: keep all, wait for partly solved tasks, or drop groups without signal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rllm_core.algorithms.options import DynamicRejectionParams, EpisodeRejectionParams, GroupRejectionParams
from rllm_core.contracts.params import NoParams
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


@dataclass(frozen=True)
class _TaskGroup:
    """A group with signal and its tasks. Each task is stored with the number of its rollout batch, so that a task in
    two batches counts twice."""

    group: TrajectoryGroup
    tasks: frozenset[tuple[int, str]]


class FillWithSignal:
    """Mode ``dynamic``: generates rollouts for more tasks until a full batch of tasks has groups with signal.

    Source: DAPO, Yu et al. 2025, arXiv:2503.14476. A full batch has `train_batch_size` tasks. Groups of further tasks
    wait for the next step. After `max_gen_batches` rollout batches, the step trains on the available groups.
    """

    def __init__(self, params: DynamicRejectionParams) -> None:
        self._params = params
        self._kept: list[_TaskGroup] = []
        self._batches = 0
        self._batches_before_step = 0

    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        self._batches += 1
        kept, dropped = with_signal(groups, self._params.min_trajs_per_group)
        self._kept += [
            _TaskGroup(group, frozenset((self._batches, task) for task in _read_task_ids(group))) for group in kept
        ]
        batch, surplus = self._first_batch()
        tasks = frozenset[tuple[int, str]]().union(*(entry.tasks for entry in batch))
        full = len(tasks) >= self._params.train_batch_size
        if not full and self._batches - self._batches_before_step < self._params.max_gen_batches:
            return RejectionResult(train=[], waiting=[entry.group for entry in self._kept], dropped=dropped, more=True)
        self._batches_before_step = self._batches
        self._kept = surplus
        train, waiting = ([entry.group for entry in entries] for entries in (batch, surplus))
        return RejectionResult(train=train, waiting=waiting, dropped=dropped)

    def _first_batch(self) -> tuple[list[_TaskGroup], list[_TaskGroup]]:
        """Return the groups of the first tasks that fill a batch, for any role, and the other groups."""
        chosen: set[tuple[int, str]] = set()
        batch: list[_TaskGroup] = []
        surplus: list[_TaskGroup] = []
        for entry in self._kept:
            if len(chosen) < self._params.train_batch_size:
                chosen |= entry.tasks
            (batch if entry.tasks <= chosen else surplus).append(entry)
        return batch, surplus

    def state_dict(self) -> dict[str, Any]:
        if not self._batches:
            return {}
        kept = [
            {"group": codec.group_to_json(entry.group), "played": sorted(map(list, entry.tasks))}
            for entry in self._kept
        ]
        return {"kept": kept, "rounds": self._batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not state:
            return
        self._kept = [
            _TaskGroup(
                codec.group_from_json(entry["group"]), frozenset((number, task) for number, task in entry["played"])
            )
            for entry in state["kept"]
        ]
        self._batches = self._batches_before_step = state["rounds"]


def _read_task_ids(group: TrajectoryGroup) -> set[str]:
    """Return the ids of the tasks of a group. A group without task ids counts as one separate task."""
    return {str(entry["task_id"]) for entry in group.metadata if "task_id" in entry} or {group.group_id}
