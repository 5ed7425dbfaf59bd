"""Advantages that come with the steps of some groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from expecting import check_error
from hypothesis import given, strategies as st

from rllm_core.algorithms.precomputed import find_step_advantages, groups_with_advantages
from rllm_core.data import codec
from rllm_core.data.batch import build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.errors import AdvantageError

from .conftest import make_rewritten, make_two_turns


def group(*trajectories: Trajectory, group_id: str = "t:agent", **fields: Any) -> TrajectoryGroup:
    return TrajectoryGroup(group_id=group_id, trajectories=list(trajectories), **fields)


def find_lists(*groups: TrajectoryGroup, on_mismatch: Any = "error") -> tuple[list[float], list[bool], int]:
    precomputed, mismatched = find_step_advantages(build_batch(groups), on_mismatch)
    assert precomputed.advantages.dtype == np.float32
    return precomputed.advantages.tolist(), precomputed.groups.tolist(), mismatched


def failure(*groups: TrajectoryGroup) -> AdvantageError:
    with pytest.raises(AdvantageError) as caught:
        find_step_advantages(build_batch(groups), "error")
    return caught.value


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (0.5, [1.0, -2.0], [0, 0, 0.5, 0, 1, -2]),
        (np.float32(0.5), (1, -2), [0, 0, 0.5, 0, 1, -2]),
        (0.5, np.array([1, -2], np.float32), [0, 0, 0.5, 0, 1, -2]),
        ([0.5], 0.0, [0, 0, 0.5, 0, 0, 0]),
        (0.0, 0.0, [0] * 6),
    ],
    ids=str,
)
def test_advantage_is_one_number_or_one_per_token(first: Any, second: Any, expected: Any) -> None:
    assert find_lists(group(make_two_turns(first, second))) == (expected, [True], 0)


def test_groups_without_precomputed_advantages_are_unchanged() -> None:
    advantages, groups, mismatched = find_lists(
        group(make_two_turns(None, None)), group(make_two_turns(1.0, 2.0)), group(make_two_turns(None, None))
    )
    assert advantages == [0] * 6 + [0, 0, 1, 0, 2, 2] + [0] * 6
    assert (groups, mismatched) == ([False, True, False], 0)


def test_steps_are_found_by_tokens_in_any_order() -> None:
    trajectories = make_two_turns(1.0, [2.0, 3.0]), make_rewritten(4.0, 5.0, [6.0, 7.0])
    for trajectory in trajectories:
        trajectory.steps.reverse()
    assert find_lists(group(*trajectories))[0] == [0, 0, 1, 0, 2, 3, 0, 4, 0, 5, 0, 0, 6, 7]


def test_step_without_tokens_needs_no_advantage() -> None:
    trajectory = make_two_turns(1.0, 2.0)
    trajectory.add_step([8, 8], [], [], advantage=None)
    trajectory.add_step([7, 7], [], [], advantage=[])
    assert find_lists(group(trajectory, Trajectory("agent", reward=0.0))) == ([0, 0, 1, 0, 2, 2], [True], 0)


def test_nothing_is_found_in_nothing() -> None:
    assert find_lists() == ([], [], 0)
    assert groups_with_advantages([]).dtype == np.bool_


UNUSABLE = [
    (None, ["2 response tokens"]),
    ([1.0, 2.0, 3.0], ["3", "2 response tokens"]),
    ([], ["0", "2 response tokens"]),
    ([[1.0, 2.0]], ["(1, 2)", "2 response tokens"]),
    (float("nan"), ["NaN", "float32"]),
    ([1.0, float("inf")], ["infinite", "float32"]),
    (1e39, ["infinite", "float32"]),
    ("high", ["'high'"]),
    ([1.0, None], ["NaN", "float32"]),
    ([1.0, [2.0]], ["[1.0, [2.0]]"]),
]


@pytest.mark.parametrize(("advantage", "values"), [*UNUSABLE, ([0.5], ["1", "2 response tokens"])])
def test_unusable_advantage_is_an_error_with_its_place(advantage: Any, values: list[str]) -> None:
    metadata = [{"task_id": "t", "rollout_idx": index} for index in range(2)]
    good, bad = make_two_turns(1.0, 1.0), make_two_turns(1.0, advantage)
    error = failure(group(good, bad, group_id="t:solver", metadata=metadata))
    where = ["'t:solver'", "step 1", "trajectory 1", "'t:1'"]
    key = "rllm.algorithm.on_precomputed_mismatch=zero"
    check_error(error, "bad-precomputed-advantages", *where, *values, "`step.advantage`", key)
    check_error(failure(group(bad)), "bad-precomputed-advantages", "step 1", "trajectory 0")


@pytest.mark.parametrize("advantage", [advantage for advantage, _ in UNUSABLE])
def test_unusable_advantage_can_become_a_counted_zero(advantage: Any) -> None:
    made = find_lists(group(make_two_turns(1.0, advantage), make_two_turns(advantage, 3.0)), on_mismatch="zero")
    assert made[0] == [0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3, 3]
    assert made[1:] == ([True], 2)


ADVANTAGE = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(ADVANTAGE, min_size=1, max_size=6), st.booleans())
def test_precomputed_advantages_survive_checkpoints_bit_for_bit(values: list[float], as_float32: bool) -> None:
    trajectory = Trajectory("agent", reward=0.0)
    said = np.array(values, np.float32 if as_float32 else np.float64)
    trajectory.add_step([1], [2] * len(values), [-1.0] * len(values), advantage=said)
    again = codec.group_from_json(codec.group_to_json(group(trajectory)))
    for each in (group(trajectory), again):
        batch = build_batch([each])
        sampled = find_step_advantages(batch, "error").precomputed.advantages[batch.loss_mask]
        assert sampled.tobytes() == np.array(values, np.float32).tobytes()
