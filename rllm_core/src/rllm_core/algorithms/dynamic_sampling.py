"""The rejection mode dynamic: it replaces groups without signal by generating rollouts for more tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rllm_core.algorithms.options import DynamicRejectionParams
from rllm_core.algorithms.rejection import with_signal
from rllm_core.contracts.rejection import RejectionResult
from rllm_core.data import codec
from rllm_core.data.types import TrajectoryGroup


@dataclass(frozen=True)
class _Kept:
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
        self._kept: list[_Kept] = []
        self._batches = 0
        self._batches_before_step = 0

    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        self._batches += 1
        kept, dropped = with_signal(groups, self._params.min_trajs_per_group)
        self._kept += [
            _Kept(group, frozenset((self._batches, task) for task in _read_task_ids(group))) for group in kept
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

    def _first_batch(self) -> tuple[list[_Kept], list[_Kept]]:
        """Return the groups of the first tasks that fill a batch, for any role, and the other groups."""
        chosen: set[tuple[int, str]] = set()
        batch: list[_Kept] = []
        surplus: list[_Kept] = []
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
            _Kept(codec.group_from_json(entry["group"]), frozenset((number, task) for number, task in entry["played"]))
            for entry in state["kept"]
        ]
        self._batches = self._batches_before_step = state["rounds"]


def _read_task_ids(group: TrajectoryGroup) -> set[str]:
    """Return the ids of the tasks of a group. A group without task ids counts as one separate task."""
    return {str(entry["task_id"]) for entry in group.metadata if "task_id" in entry} or {group.group_id}
