"""Which groups are trained on now, later, or not at all."""

from __future__ import annotations

import pytest

from rllm_core.algorithms.options import EpisodeRejectionParams, GroupRejectionParams
from rllm_core.algorithms.rejection import DropWithoutSignal, KeepAll, WaitForPartialSolves, partly_solved_tasks
from rllm_core.contracts.params import NoParams
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.errors import PipelineError


def _group(task: str, *rollouts: tuple[float, bool]) -> TrajectoryGroup:
    """A group of one-token trajectories with these rewards and outcomes."""
    group = TrajectoryGroup(group_id=f"{task}:agent", trajectories=[])
    for index, (reward, correct) in enumerate(rollouts):
        trajectory = Trajectory("agent", reward=reward)
        trajectory.add_step([index], [index], [-0.1 * index])
        group.trajectories.append(trajectory)
        group.metadata.append({"task_id": task, "rollout_idx": index, "is_correct": correct})
    return group


PARTLY = ((1.0, True), (0.0, False))
SOLVED = ((1.0, True), (1.0, True))
FAILED = ((0.0, False), (0.0, False))


def _wait_for(tasks: int) -> WaitForPartialSolves:
    return WaitForPartialSolves(EpisodeRejectionParams(min_partial_solve_tasks=tasks))


def _drop(smallest: int = 2) -> DropWithoutSignal:
    return DropWithoutSignal(GroupRejectionParams(min_trajs_per_group=smallest))


def test_none_keeps_groups_without_signal() -> None:
    groups = [_group("a", (1.0, True)), _group("b", *SOLVED), _group("c")]
    result = KeepAll(NoParams())(groups)
    assert result.train == groups
    assert (result.waiting, result.dropped) == ((), {})


def test_group_drops_for_exactly_four_reasons() -> None:
    groups = [
        _group("few", (1.0, True)),
        _group("nobody"),
        _group("kept", *PARTLY),
        _group("solved", *SOLVED),
        _group("failed", *FAILED),
        _group("failed too", *FAILED),
        _group("equal", (0.5, True), (0.5, False)),
        _group("graded", (0.5, False), (0.25, False)),
        TrajectoryGroup(group_id="no metadata", trajectories=[Trajectory(reward=1.0), Trajectory(reward=1.0)]),
    ]
    mode = _drop()
    result = mode(groups)
    assert [group.group_id for group in result.train] == ["kept:agent", "graded:agent"]
    assert result.dropped == {
        "too_few": groups[:2],
        "all_solved": [groups[3]],
        "all_failed": groups[4:6],
        "equal_rewards": [groups[6], groups[8]],
    }
    assert (result.waiting, mode.state_dict()) == ((), {})


def test_group_drops_by_the_size_it_was_told() -> None:
    group = _group("a", (1.0, True), (0.0, False), (0.5, False))
    assert _drop(3)([group]).train == [group]
    assert _drop(4)([group]).dropped == {"too_few": [group]}
    assert _drop(1)([_group("one", (1.0, True))]).train == []  # one reward is equal to itself


def test_task_with_some_solved_rollouts_is_partly_solved() -> None:
    groups = [_group("a", *PARTLY), _group("b", *SOLVED), _group("c", *FAILED), _group("d")]
    groups[3].metadata = [{"task_id": "d", "is_correct": True}]
    assert partly_solved_tasks(groups) == {"a"}
    assert partly_solved_tasks([]) == set()
    # Rollouts of one task count together.
    assert partly_solved_tasks([_group("a", *SOLVED), _group("a", *FAILED)]) == {"a"}


def test_episode_gathers_steps_until_enough_partly_solved_tasks() -> None:
    mode = _wait_for(2)
    first, second, third = [_group("a", *PARTLY), _group("b", *SOLVED)], [_group("c", *FAILED)], [_group("d", *PARTLY)]
    waiting = mode(first)
    assert (waiting.train, waiting.waiting) == ([], tuple(first))
    waiting = mode(second)
    assert (waiting.train, waiting.waiting) == ([], (*first, *second))
    ready = mode(third)
    assert ready.train == [*first, *second, *third]
    assert ready.waiting == ()
    assert len(mode([_group("e", *PARTLY)]).waiting) == 1  # from the beginning again


def test_episode_gathers_a_tasks_rollouts_over_steps() -> None:
    mode = _wait_for(1)
    assert mode([_group("a", *SOLVED)]).train == []
    assert len(mode([_group("a", *FAILED)]).train) == 2


def test_episode_without_task_ids_is_an_error() -> None:
    bare = TrajectoryGroup(group_id="batch", trajectories=[Trajectory(reward=1.0)])
    with pytest.raises(PipelineError, match="Group 'batch' has no `task_id` in its metadata"):
        _wait_for(1)([bare])
