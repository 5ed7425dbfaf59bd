"""Training steps for testing stages: filled with the fields that a stage reads, watched, and compared afterwards."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from rllm_core.algorithms.grouping import by_task_and_role
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data import codec
from rllm_core.data.batch import TokenBatch, TokenTargets, build_batch
from rllm_core.data.types import Episode, Task, Trajectory, TrajectoryGroup
from rllm_plugin_kit.samples import FILLED, fill, make_episodes

FIELD_NAMES: Mapping[str, frozenset[str]] = {
    "tasks": frozenset({"tasks"}),
    "generated": frozenset({"generated", "episodes"}),
    "episodes": frozenset({"episodes", "trajectory_names", "rewards"}),
    "offered_groups": frozenset({"offered_groups", "trajectory_groups", "rewards"}),
    "trajectory_groups": frozenset({"trajectory_groups", "rewards"}),
    "batch": frozenset({"batch", *(f"batch.{column}" for column in FILLED)}),
}
"""Fields of a step, and their names in `reads` and `writes`. A stage may always read other fields."""
OF_THE_LOOP = "global_step, epoch, total_steps, task_batch, is_training, later_batches or timing_dict"
ASPECTS: Mapping[str, frozenset[str]] = {
    "tasks": frozenset({"tasks"}),
    "generated": frozenset({"generated", "episodes"}),
    "episodes": frozenset({"episodes"}),
    "offered_groups": frozenset({"offered_groups", "trajectory_groups"}),
    "trajectory_groups": frozenset({"trajectory_groups"}),
    "trajectory_names": frozenset({"trajectory_names", "episodes"}),
    "rewards": frozenset({"rewards", "episodes"}),
    "tokens of trajectories": frozenset({"episodes", "trajectory_groups"}),
    "batch": frozenset({"batch"}),
    **{f"batch.{column}": frozenset({"batch", f"batch.{column}"}) for column in FILLED},
    "weight_version": frozenset({"weights"}),
    "skip_reason": frozenset({"episodes", "trajectory_groups", "batch"}),
    OF_THE_LOOP: frozenset(),
}
"""Parts of a step, and the names in `writes` that allow a change. All stages may change `metrics`, `extras`, `info`."""


class WatchedStep(TrainStep):
    """A step that records in `seen` which fields are read."""

    def __init__(self, **values: Any) -> None:
        self.seen: set[str] = set()
        super().__init__(**values)

    def __getattribute__(self, name: str) -> Any:
        if name in FIELD_NAMES:
            self.seen.add(name)
        return super().__getattribute__(name)


def make_step(written: Collection[str], tasks: int = 3, number: int = 0) -> WatchedStep:
    """Make a step with the parts that `written` names, with `tasks` tasks. The parts are empty if `tasks` is 0."""
    episodes = make_episodes(seed=number, tasks=tasks, rollouts=4)
    groups = by_task_and_role(episodes, NoParams())
    stands_for = {field: bool(names.intersection(written)) for field, names in FIELD_NAMES.items()}
    step = WatchedStep(
        global_step=number,
        epoch=0,
        total_steps=100,
        tasks=[Task(id=f"task-{task}") for task in range(tasks)],
        task_batch=number,
        generated=list(episodes) if stands_for["generated"] else [],
        episodes=list(episodes) if stands_for["episodes"] else [],
        offered_groups=list(groups) if stands_for["offered_groups"] else [],
        trajectory_groups=list(groups) if stands_for["trajectory_groups"] else [],
    )
    if stands_for["batch"]:
        step.batch = fill(build_batch(groups), [name.removeprefix("batch.") for name in written])
    return step


def snapshot(step: TrainStep) -> dict[str, object]:
    """Each of `ASPECTS` as something to compare."""
    groups = [*step.offered_groups, *step.trajectory_groups]
    holders: list[Episode | TrajectoryGroup] = [
        *step.generated,
        *step.episodes,
        *groups,
        *(step.batch.groups if step.batch else ()),
    ]
    members = {id(member): member for holder in holders for member in holder.trajectories}
    content: dict[str, object] = {
        "alive": members,  # so that no later trajectory gets the id of one of these
        "tasks": [(task.id, task.data_source, json.dumps(dict(task.data), default=repr)) for task in step.tasks],
        "trajectory_names": {key: member.name for key, member in members.items()},
        "rewards": {key: [member.reward, *(s.reward for s in member.steps)] for key, member in members.items()},
        "tokens of trajectories": {key: _tokens(member) for key, member in members.items()},
        "weight_version": step.weight_version,
        "skip_reason": step.skip_reason,
        OF_THE_LOOP: [
            *(step.global_step, step.epoch, step.total_steps, step.task_batch, step.is_training),
            *step.later_batches,
            *step.timing_dict.items(),
        ],
    }
    for name in ("generated", "episodes"):
        content[name] = [
            (
                episode.id,
                episode.is_correct,
                episode.termination_reason,
                episode.error,
                episode.data_source,
                [id(member) for member in episode.trajectories],
            )
            for episode in getattr(step, name)
        ]
    for name in ("offered_groups", "trajectory_groups"):
        content[name] = [
            (group.group_id, json.dumps(group.metadata, default=str), list(map(id, group.trajectories)))
            for group in getattr(step, name)
        ]
    return content | _columns(step.batch)


def find_changed_aspects(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The aspects that differ. Of trajectories only those that were there before are compared."""
    differing = []
    for aspect in ASPECTS:
        old, new = before[aspect], after[aspect]
        if isinstance(old, dict):
            new = {key: new.get(key, value) for key, value in old.items()}
        if old != new:
            differing.append(aspect)
    return differing


def _tokens(member: Trajectory) -> str:
    written = codec.trajectory_to_json(member)
    names = ("span", "advantage", "text", "weight_version", "version_spans")
    steps = [[entry[name] for name in names] for entry in written["steps"]]
    return json.dumps([member.uid, written["ids"], written["logprobs"], steps])


def _columns(batch: TokenBatch | None) -> dict[str, object]:
    optional = {f"batch.{column}": _bytes(getattr(batch, column, None)) for column in FILLED}
    if batch is None:
        return optional | {"batch": None}
    always = [field.name for field in fields(batch) if field.name not in (*FILLED, "groups")]
    return optional | {"batch": [_bytes(getattr(batch, name)) for name in always]}


def _bytes(column: Any) -> object:
    if isinstance(column, TokenTargets):
        return [_bytes(each) for each in vars(column).values()]
    return column.tobytes() if isinstance(column, np.ndarray) else column
