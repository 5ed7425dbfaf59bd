"""Which trajectories are compared, and which rollouts are removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rllm_core.algorithms.grouping import (
    OVERLONG,
    by_episode,
    by_role,
    by_task,
    by_task_and_role,
    compact_filter,
    drop_truncated,
    masked_reasons,
)
from rllm_core.builtin import rllm_groupings
from rllm_core.contracts import MIXED_ROLES, Grouping, NoParams
from rllm_core.data.types import Episode, Step, TerminationReason, Trajectory, TrajectoryGroup
from rllm_core.schema.algorithm_sections import CompactFilteringSection
from rllm_core.schema.run_config import RllmSection
from rllm_core.schema.run_sections import AgentSection

MASKS = [f"mask_{reason.value}" for reason in TerminationReason]


def _settings(enable: bool, masks: dict[str, bool], overlong: bool = False) -> RllmSection:
    return RllmSection(
        compact_filtering=CompactFilteringSection(enable=enable, **masks), agent=AgentSection(overlong_filter=overlong)
    )


def _episode(task: str, index: int, *roles: str, correct: bool = False) -> Episode:
    return Episode(
        id=f"{task}:{index}", trajectories=[Trajectory(role, reward=1.0) for role in roles], is_correct=correct
    )


def test_one_task_and_role_make_a_group() -> None:
    episodes = [
        _episode("b:7", 0, "solver", "judge", correct=True),
        _episode("a", 0, "solver"),
        _episode("b:7", 1, "judge", "solver"),
    ]
    groups = by_task_and_role(episodes, NoParams())
    assert [group.group_id for group in groups] == ["b:7:solver", "b:7:judge", "a:solver"]
    assert groups[0].trajectories == [episodes[0].trajectories[0], episodes[2].trajectories[1]]
    common = {"task_id": "b:7", "termination_reason": "unknown", "data_source": "default"}
    assert groups[0].metadata == [
        common | {"rollout_idx": index, "is_correct": correct} for index, correct in ((0, True), (1, False))
    ]


Belongs = Callable[[Episode, Trajectory], tuple[str, ...]]

COMPARED: dict[Grouping, Belongs] = {
    by_task_and_role: lambda episode, trajectory: (episode.task_id, trajectory.name),
    by_task: lambda episode, trajectory: (episode.task_id,),
    by_role: lambda episode, trajectory: (trajectory.name,),
    by_episode: lambda episode, trajectory: (episode.id,),
}
"""Grouping to what two trajectories must share to be compared."""
EVERY = pytest.mark.parametrize("grouping", COMPARED, ids=lambda grouping: grouping.__name__)


@st.composite
def _draw_episodes(draw: st.DrawFn) -> list[Episode]:
    """Rollouts of tasks in several roles; ids and roles may hold colons, and a rollout may hold no trajectory."""
    names = st.sampled_from(["a", "b", "a:b", "b:a", ":", "a:b:c", "all_groups", "every_task"])
    ids = draw(st.lists(st.tuples(names, st.integers(0, 2)), unique=True, max_size=6))
    return [_episode(task, index, *draw(st.lists(names, max_size=4))) for task, index in ids]


@EVERY
@given(episodes=_draw_episodes())
def test_compared_trajectories_are_in_one_group(grouping: Grouping, episodes: list[Episode]) -> None:
    groups = grouping(episodes, NoParams())
    group_of = {id(trajectory): group for group in groups for trajectory in group.trajectories}
    everything = [(episode, trajectory) for episode in episodes for trajectory in episode.trajectories]
    assert sum(len(group.trajectories) for group in groups) == len(everything) == len(group_of)
    assert all(group.trajectories for group in groups)
    shared = COMPARED[grouping]
    for one in everything:
        for other in everything:
            together = group_of[id(one[1])] is group_of[id(other[1])]
            assert together == (shared(*one) == shared(*other))


@EVERY
@given(episodes=_draw_episodes())
def test_groups_are_in_order_of_first_appearance(grouping: Grouping, episodes: list[Episode]) -> None:
    place = {id(t): place for place, t in enumerate(t for episode in episodes for t in episode.trajectories)}
    episode_of = {id(t): episode for episode in episodes for t in episode.trajectories}
    groups = grouping(episodes, NoParams())
    places = [[place[id(trajectory)] for trajectory in group.trajectories] for group in groups]
    assert all(members == sorted(members) for members in places)
    assert [members[0] for members in places] == sorted(members[0] for members in places)
    for group in groups:
        for trajectory, entry in zip(group.trajectories, group.metadata, strict=True):
            episode = episode_of[id(trajectory)]
            assert (entry["task_id"], entry["rollout_idx"]) == (episode.task_id, episode.rollout_idx)


@pytest.mark.parametrize(
    ("grouping", "expected"),
    [
        (by_task_and_role, {"m:1:solver": "solver", "m:1:judge": "judge", "m:2:solver": "solver"}),
        (by_task, {"m:1:all_groups": MIXED_ROLES, "m:2:all_groups": MIXED_ROLES}),
        (by_role, {"every_task:solver": "solver", "every_task:judge": "judge"}),
        (by_episode, {f"m:{end}:all_groups": MIXED_ROLES for end in ("1:0", "1:1", "2:0")}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_group_role_comes_from_trajectories_or_is_mixed(grouping: Grouping, expected: dict[str, str]) -> None:
    episodes = [_episode("m:1", 0, "solver", "judge"), _episode("m:1", 1, "judge"), _episode("m:2", 0, "solver")]
    groups = grouping(episodes, NoParams())
    assert {group.group_id: group.group_role for group in groups} == expected


def test_group_id_without_colon_has_mixed_roles() -> None:
    assert TrajectoryGroup(group_id="batch", trajectories=[]).group_role == MIXED_ROLES


@pytest.mark.parametrize("grouping", [by_task_and_role, by_role])
def test_last_part_of_a_role_chooses_its_estimator(grouping: Grouping) -> None:
    episodes = [_episode("t", 0, "red:solver", "blue:solver")]
    groups = grouping(episodes, NoParams())
    assert [(len(group.trajectories), group.group_role) for group in groups] == [(1, "solver"), (1, "solver")]


def test_groupings_declare_what_their_groups_compare() -> None:
    pairs = {
        "rollouts": [_episode("t", 0, "x"), _episode("t", 1, "x")],
        "tasks": [_episode("t", 0, "x"), _episode("u", 0, "x")],
        "roles": [_episode("t", 0, "x", "y")],
    }
    for record in rllm_groupings():
        together = {what for what, episodes in pairs.items() if len(record.load()(episodes, record.params())) == 1}
        assert record.compares == together


@EVERY
def test_metadata_is_json_data_for_any_workflow(grouping: Grouping) -> None:
    episode = _episode("a", 0, "agent", correct=np.bool_(True))  # type: ignore[arg-type]
    assert grouping([episode], NoParams())[0].metadata[0]["is_correct"] is True


def test_every_termination_reason_has_a_mask() -> None:
    assert {name for name in CompactFilteringSection.model_fields if name != "enable"} == set(MASKS)


@pytest.mark.parametrize("reason", TerminationReason)
def test_each_mask_removes_only_its_termination_reason(reason: TerminationReason) -> None:
    masked = masked_reasons(_settings(True, dict.fromkeys(MASKS, False) | {f"mask_{reason.value}": True}))
    assert masked == {reason}
    episodes = [Episode(id=f"{other.value}:0", termination_reason=other) for other in (*TerminationReason, reason)]
    kept, dropped = compact_filter(episodes, masked)
    expected = [episode for episode in episodes if episode.termination_reason != reason]
    assert [id(episode) for episode in kept] == [id(episode) for episode in expected]
    assert dropped == {reason.value: 2}


@pytest.mark.parametrize(
    ("enable", "masks", "overlong", "masked"),
    [
        (False, dict.fromkeys(MASKS, True), False, frozenset()),
        (False, dict.fromkeys(MASKS, True), True, OVERLONG),
        (True, dict.fromkeys(MASKS, False) | {"mask_error": True}, True, OVERLONG | {TerminationReason.ERROR}),
    ],
)
def test_masks_and_the_overlong_filter_add_up(enable: bool, masks: Any, overlong: bool, masked: Any) -> None:
    assert masked_reasons(_settings(enable, masks, overlong)) == masked
    others = {"env_done", "error", "unknown"}
    assert {reason.value for reason in TerminationReason} - {reason.value for reason in OVERLONG} == others


def _trajectory_with_reasons(*reasons: str) -> Trajectory:
    return Trajectory("agent", [Step([1], [2], [-1.0], info={"finish_reason": reason}) for reason in reasons])


def test_last_response_decides_if_trajectory_is_truncated() -> None:
    whole = Episode(id="t:0", trajectories=[_trajectory_with_reasons("length", "stop"), Trajectory("judge")])
    partly = Episode(id="t:1", trajectories=[*whole.trajectories, _trajectory_with_reasons("stop", "length")])
    gone = Episode(id="t:2", trajectories=[_trajectory_with_reasons("length"), _trajectory_with_reasons("length")])
    (first, second), count = drop_truncated([whole, partly, gone])
    assert first is whole  # it loses nothing, so it is not copied
    assert second.trajectories == whole.trajectories
    assert (count, len(partly.trajectories)) == (3, 3)
    assert drop_truncated([]) == ([], 0)
