"""From groups to one columnar batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rllm_core.data.batch import build_batch
from rllm_core.data.types import Step, Trajectory, TrajectoryGroup
from rllm_core.data.version_spans import VersionSpan

MakeConversation = Callable[..., Trajectory]
MakeGroup = Callable[..., TrajectoryGroup]


def test_no_groups_give_an_empty_batch() -> None:
    batch = build_batch([])
    assert (batch.n_rows, batch.n_trajectories, len(batch.tokens), batch.roles) == (0, 0, 0, ())
    assert batch.row_offsets.tolist() == [0]
    assert batch.row_offsets.dtype == np.int64
    assert (batch.tokens.dtype, batch.loss_mask.dtype, batch.sampling_logprobs.dtype) == (np.int32, bool, np.float32)


def test_rows_lie_end_to_end_with_their_owners(conversation: MakeConversation, group: MakeGroup) -> None:
    first, second, third = conversation(1), conversation(2), conversation(1, prompt_tokens=1, response_tokens=1)
    shortened = conversation(2)
    shortened.steps.pop()  # a step taken out is not trained on
    members = {"t0:solver": [first, second], "t0:judge": [third], "t1:judge": [], "t1:solver": [shortened]}
    batch = build_batch([group(name, trajectories) for name, trajectories in members.items()])
    assert batch.roles == ("solver", "judge")
    assert batch.row_offsets.tolist() == [0, 5, 15, 17, 22]
    assert batch.row_lengths.tolist() == [5, 10, 2, 5]
    assert batch.trajectory.tolist() == [0, 1, 2, 3]
    assert batch.group.tolist() == [0, 0, 1, 3]
    assert batch.role.tolist() == [0, 0, 1, 0]
    one = [100, 100, 0, 0, 0]
    assert batch.tokens.tolist() == [*one, *one, 101, 101, 1, 1, 1, 100, 0, *one]
    assert batch.loss_mask[:5].tolist() == [False, False, True, True, True]
    assert batch.sampling_logprobs[:5].tolist() == [0.0, 0.0, -0.5, -0.5, -0.5]
    assert batch.n_trajectories == 4
    assert all(column.dtype == np.int32 for column in (batch.trajectory, batch.group, batch.role, batch.weight_version))


def test_trajectories_without_sampled_tokens_give_no_row(conversation: MakeConversation, group: MakeGroup) -> None:
    silent = [Trajectory("agent"), Trajectory("agent", [Step([1, 2], [])]), Trajectory("agent", [Step()])]
    batch = build_batch([group("t:agent", [*silent, conversation(1)])])
    assert batch.n_rows == 1
    assert batch.trajectory.tolist() == [3]
    assert batch.n_trajectories == 4
    assert len(batch.tokens) == 5


def test_a_rewritten_history_gives_a_row_per_segment(group: MakeGroup) -> None:
    trajectory = Trajectory("agent")
    trajectory.add_step([1, 2], [3], [-1.0], weight_version=5)
    trajectory.add_step([8, 8], [], [], weight_version=1)
    trajectory.add_step([9], [4], [-2.0], weight_version=7)
    trajectory.add_step([9, 4], [5], [-3.0], weight_version=6)
    trajectory.add_step([9, 4, 5], [], [], weight_version=0)
    batch = build_batch([group("t:agent", [trajectory])])
    assert batch.row_offsets.tolist() == [0, 3, 6]
    assert batch.trajectory.tolist() == [0, 0]
    assert batch.weight_version.tolist() == [5, 6]  # the oldest that sampled a token
    assert batch.versions[batch.loss_mask].tolist() == [5, 7, 6]
    assert batch.versions.shape == batch.tokens.shape


def test_tokens_of_several_versions_are_told_apart(group: MakeGroup) -> None:
    trajectory = Trajectory("agent")
    trajectory.add_step([1, 2], [3], [-1.0], weight_version=5)
    spans = (VersionSpan(7, 1), VersionSpan(6, 2))
    trajectory.add_step([1, 2, 3, 4], [5, 6, 7], [-1.0] * 3, weight_version=6, version_spans=spans)
    batch = build_batch([group("t:agent", [trajectory, Trajectory("agent", [Step([1], [2], weight_version=9)])])])
    assert batch.weight_version.tolist() == [5, 9]
    assert batch.token_versions is not None
    assert batch.versions.dtype == np.int32
    assert batch.versions[batch.loss_mask].tolist() == [5, 7, 6, 6, 9]


def test_tokens_of_one_version_need_no_column(group: MakeGroup) -> None:
    trajectories = [Trajectory("agent", [Step([1], [2, 3], weight_version=version)]) for version in (4, 6)]
    batch = build_batch([group("t:agent", trajectories)])
    assert batch.token_versions is None
    assert batch.versions.tolist() == [4, 4, 4, 6, 6, 6]


@pytest.mark.parametrize("prompt", [[], [8, 8]])
def test_segment_without_sampled_token_gives_no_row(group: MakeGroup, prompt: list[int]) -> None:
    trajectory = Trajectory("agent")
    trajectory.add_step([1, 2], [3], [-1.0], weight_version=4)
    trajectory.add_step(prompt, [], [], weight_version=0)
    batch = build_batch([group("t:agent", [trajectory])])
    assert batch.tokens.tolist() == [1, 2, 3]
    assert batch.weight_version.tolist() == [4]


def test_columns_are_added_without_copying(conversation: MakeConversation, group: MakeGroup) -> None:
    batch = build_batch([group("t:agent", [conversation(1)])])
    column = np.ones(5, np.float32)
    filled = batch.with_columns(old_logprobs=column)
    assert filled.old_logprobs is column
    assert filled.tokens is batch.tokens
    assert batch.old_logprobs is None


@pytest.mark.parametrize("shape", [(4,), (5, 1), ()])
def test_a_column_of_another_shape_is_refused(conversation: Any, group: MakeGroup, shape: tuple[int, ...]) -> None:
    batch = build_batch([group("t:agent", [conversation(1)])])
    with pytest.raises(ValueError, match=r"column 'values' has shape .*, the batch has \(5,\) tokens"):
        batch.with_columns(values=np.zeros(shape, np.float32))


def test_row_with_unknown_logprob_uses_the_trainers() -> None:
    known, half, unknown = (
        Trajectory("agent", [Step([1, 2], [3, 4], logprobs)], 0.0) for logprobs in ([-0.5, -0.25], [-0.5, None], None)
    )
    silent = Trajectory("agent", [Step([1], [])], 0.0)
    trajectories = [known, half, silent, unknown]
    batch = build_batch([TrajectoryGroup(group_id="t:agent", trajectories=trajectories)])
    computed = np.full(len(batch.tokens), -7, np.float32) * batch.loss_mask
    old = batch.old_logprobs_from(computed)
    assert old.tolist() == [0, 0, -0.5, -0.25, 0, 0, -7, -7, 0, 0, -7, -7]
    assert old.dtype == np.float32
    assert batch.unknown_logprobs.nonzero()[0].tolist() == [7, 10, 11]
