"""What an estimator is given of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from expecting import expect_error
from plain_groups import make_groups, select_role

from rllm_core.data.batch import build_batch
from rllm_core.data.types import Step, Trajectory, TrajectoryGroup
from rllm_core.errors import AdvantageError


def _group(*trajectories: Trajectory, group_id: str = "t:agent") -> TrajectoryGroup:
    return TrajectoryGroup(group_id=group_id, trajectories=list(trajectories))


def test_an_estimator_sees_all_columns_of_its_role(two_turns: Trajectory, rewritten: Trajectory) -> None:
    other = Trajectory("judge", [Step([1], [2], [-1.0])], reward=9.0)
    batch = build_batch(
        [
            _group(two_turns, group_id="a:agent"),
            _group(other, group_id="a:judge"),
            _group(rewritten, group_id="b:agent"),
        ]
    )
    inputs = select_role(batch, 0)
    assert inputs.rewards.tolist() == [1, 2]
    assert inputs.group_offsets.tolist() == [0, 1, 2]
    assert inputs.response_lengths.tolist() == [3, 4]
    assert inputs.step_offsets.tolist() == [0, 2, 5]
    assert inputs.step_rewards[0] == 0.25
    assert np.isnan(inputs.step_rewards[1:]).all()
    assert inputs.token_offsets.tolist() == [0, 6, 14]
    assert inputs.loss_mask.tolist() == [*two_turns.tokens.sampled, *rewritten.tokens.sampled]
    assert [group.group_id for group in inputs.groups] == ["a:agent", "b:agent"]
    assert select_role(batch, 1).rewards.tolist() == [9]


def test_estimators_cannot_change_their_inputs() -> None:
    inputs = select_role(build_batch(make_groups([[1, 0], [1]])), 0)
    columns = [column for column in vars(inputs).values() if isinstance(column, np.ndarray)]
    assert len(columns) == 8
    for column in columns:
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1


def test_common_parts_of_rewards_become_columns() -> None:
    def trajectory(**parts: Any) -> Trajectory:
        return Trajectory("agent", [Step([1], [2], [-1.0])], reward=1.0, info={"reward_components": parts})

    group = _group(
        trajectory(right=np.float32(1.0), short=0.5, extra=2.0, odd=np.False_), trajectory(short=2, right=0.0, odd=True)
    )
    inputs = select_role(build_batch([group]), 0)
    assert inputs.component_names == ("odd", "right", "short")
    assert inputs.reward_components is not None
    assert inputs.reward_components.tolist() == [[0.0, 1.0, 0.5], [1.0, 0.0, 2.0]]


def test_without_common_parts_there_are_no_reward_components(two_turns: Trajectory) -> None:
    inputs = select_role(build_batch([_group(two_turns)]), 0)
    assert (inputs.component_names, inputs.reward_components) == ((), None)


@pytest.mark.parametrize("parts", [3.0, ["a"], {"a": "x"}, {"a": None}, {1: 1.0}, None])
def test_reward_parts_must_be_numbers(two_turns: Any, rewritten: Trajectory, parts: object) -> None:
    two_turns.info["reward_components"] = {"a": 1.0}
    rewritten.info["reward_components"] = parts
    batch = build_batch([_group(two_turns, rewritten, group_id="t7:agent")])
    where = "info['reward_components'] of trajectory 1 in group 't7:agent'"
    with expect_error(AdvantageError, "bad-reward-component", where, repr(parts)):
        select_role(batch, 0)


def test_columns_of_the_backend_reach_their_roles_estimator(two_turns: Trajectory) -> None:
    other = Trajectory("judge", reward=0.0)
    other.add_step([1], [2], [-0.5])
    batch = build_batch([_group(two_turns), _group(other, group_id="t:judge")])
    batch = batch.with_columns(values=np.arange(8, dtype=np.float32))
    assert select_role(batch, 1).values is not None
    assert select_role(batch, 1).values.tolist() == [6, 7]
    assert select_role(batch, 1).sampling_logprobs.tolist() == [0, -0.5]
    assert select_role(batch, 0).ref_logprobs is None


def test_greedy_rewards_become_a_column(two_turns: Trajectory, rewritten: Trajectory) -> None:
    assert select_role(build_batch([_group(two_turns)]), 0).greedy_rewards is None
    two_turns.info["greedy_reward"] = 0.75
    column = select_role(build_batch([_group(rewritten, two_turns)]), 0).greedy_rewards
    assert column is not None
    assert np.isnan(column[0])
    assert column[1] == 0.75
    assert column.dtype == np.float64
