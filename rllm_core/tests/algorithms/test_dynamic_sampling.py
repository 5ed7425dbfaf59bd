"""Mode `dynamic`: a step is filled with groups that have signal, and no such group is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rllm_core.algorithms.options import DynamicRejectionParams
from rllm_core.algorithms.rejection import FillWithSignal
from rllm_core.contracts.rejection import RejectionResult
from rllm_core.data.types import Trajectory, TrajectoryGroup

PARTLY, SOLVED, FAILED = (1.0, 0.0), (1.0, 1.0), (0.0, 0.0)


def _group(task: str, rewards: tuple[float, ...] = PARTLY, role: str = "agent") -> TrajectoryGroup:
    return TrajectoryGroup(
        group_id=f"{task}:{role}",
        trajectories=[Trajectory(role, reward=reward) for reward in rewards],
        metadata=[{"task_id": task, "is_correct": reward > 0} for reward in rewards],
    )


def _mode(tasks: int = 2, batches: int = 10) -> FillWithSignal:
    return FillWithSignal(DynamicRejectionParams(train_batch_size=tasks, max_gen_batches=batches))


def _names(groups: Sequence[TrajectoryGroup]) -> list[str]:
    return [group.group_id for group in groups]


def _ids(result: RejectionResult) -> list[str]:
    return _names(result.train)


def _dropped(result: RejectionResult) -> dict[str, list[str]]:
    return {reason: _names(groups) for reason, groups in result.dropped.items()}


def test_groups_without_signal_are_dropped_and_replaced() -> None:
    mode = _mode()
    first = mode([_group("a"), _group("b", SOLVED)])
    assert (first.train, first.more) == ([], True)
    assert (_names(first.waiting), _dropped(first)) == (["a:agent"], {"all_solved": ["b:agent"]})
    second = mode([_group("c", FAILED), _group("d")])
    assert (_ids(second), second.more) == (["a:agent", "d:agent"], False)
    assert _dropped(second) == {"all_failed": ["c:agent"]}


def test_surplus_groups_come_first_in_the_next_step() -> None:
    mode = _mode()
    assert mode([_group("a"), _group("b", SOLVED)]).more
    second = mode([_group("c"), _group("d")])
    assert (_ids(second), _names(second.waiting)) == (["a:agent", "c:agent"], ["d:agent"])
    assert _ids(mode([_group("e"), _group("f", FAILED)])) == ["d:agent", "e:agent"]


def test_step_trains_after_maximum_number_of_batches() -> None:
    mode = _mode(tasks=3, batches=2)
    assert mode([_group("a"), _group("b", SOLVED), _group("c", SOLVED)]).more
    second = mode([_group("d", SOLVED), _group("e", SOLVED), _group("f", SOLVED)])
    assert (_ids(second), second.more) == (["a:agent"], False)
    # The bound is that of a step, not of the run.
    assert mode([_group("g", SOLVED)]).more


def test_a_step_may_end_with_nothing() -> None:
    mode = _mode(batches=2)
    assert mode([_group("a", SOLVED)]).more
    result = mode([])
    assert (result.train, result.waiting, result.more) == ([], [], False)


@pytest.mark.parametrize(
    ("groups", "trained", "waiting"),
    [
        (
            [_group(task, role=role) for task in "abc" for role in ("solver", "judge")],
            ["a:solver", "a:judge", "b:solver", "b:judge"],
            ["c:solver", "c:judge"],
        ),
        # Groups without a task count as one each.
        ([TrajectoryGroup(group_id=name, trajectories=_group(name).trajectories) for name in "abc"], ["a", "b"], ["c"]),
    ],
    ids=["roles", "no task"],
)
def test_roles_of_a_task_train_together(groups: Any, trained: list[str], waiting: list[str]) -> None:
    result = _mode()(groups)
    assert (_ids(result), _names(result.waiting), result.more) == (trained, waiting, False)


def test_a_repeated_task_counts_again() -> None:
    mode = _mode()
    assert mode([_group("a"), _group("b", SOLVED)]).more
    assert _ids(mode([_group("a"), _group("b", SOLVED)])) == ["a:agent", "a:agent"]


BATCH = st.lists(st.sampled_from([PARTLY, SOLVED, FAILED, (1.0,)]), max_size=6)


@given(batches=st.lists(BATCH, max_size=12), tasks=st.integers(1, 5), bound=st.integers(1, 4), cut=st.integers(0, 12))
@pytest.mark.parametrize("interrupted", [False, True])
def test_groups_with_signal_are_trained_on_once(
    interrupted: bool, batches: list[list[tuple[float, ...]]], tasks: int, bound: int, cut: int
) -> None:
    mode, names, trained, asked = _mode(tasks, bound), iter(range(1000)), list[str](), 0
    expected = []
    for number, rewards in enumerate(batches):
        groups = [_group(f"t{next(names)}", reward) for reward in rewards]
        expected += [group.group_id for group in groups if {t.reward for t in group.trajectories} == {0.0, 1.0}]
        result = mode(groups)
        trained += _ids(result)
        assert trained + _names(result.waiting) == expected
        assert len(_ids(result)) <= tasks
        asked = asked + 1 if result.more else 0
        assert asked < bound
        if interrupted and number == cut and not result.more:
            state = json.loads(json.dumps(mode.state_dict()))
            mode = _mode(tasks, bound)
            mode.load_state_dict(state)
            assert mode.state_dict() == state
    assert trained == expected[: len(trained)]
