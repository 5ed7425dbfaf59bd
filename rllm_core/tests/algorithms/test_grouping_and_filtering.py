"""Which trajectories are compared, and which attempts are left out."""

from __future__ import annotations

import numpy as np
import pytest

from rllm_core.algorithms.filtering import OVERLONG, compact_filter, drop_truncated, masked_reasons
from rllm_core.algorithms.grouping import by_task_and_role
from rllm_core.config.algorithm_sections import CompactFilteringSection
from rllm_core.config.run_sections import AgentSection
from rllm_core.config.schema import RllmSection
from rllm_core.contracts.plugin import NoParams
from rllm_core.types import Episode, Step, TerminationReason, Trajectory

MASKS = [f"mask_{reason.value}" for reason in TerminationReason]


def _settings(enable: bool, masks: dict[str, bool], overlong: bool = False) -> RllmSection:
    return RllmSection(
        compact_filtering=CompactFilteringSection(enable=enable, **masks), agent=AgentSection(overlong_filter=overlong)
    )


def _episode(task: str, index: int, *roles: str, correct: bool = False) -> Episode:
    return Episode(
        id=f"{task}:{index}", trajectories=[Trajectory(role, reward=1.0) for role in roles], is_correct=correct
    )


def test_attempts_at_one_task_in_one_role_are_a_group() -> None:
    episodes = [
        _episode("b", 0, "solver", "judge", correct=True),
        _episode("a", 0, "solver"),
        _episode("b", 1, "judge", "solver"),
    ]
    groups = by_task_and_role(episodes, NoParams())
    assert [group.group_id for group in groups] == ["b:solver", "b:judge", "a:solver"]
    assert groups[0].trajectories == [episodes[0].trajectories[0], episodes[2].trajectories[1]]
    assert groups[0].metadata == [
        {
            "task_id": "b",
            "rollout_idx": index,
            "is_correct": correct,
            "termination_reason": "unknown",
            "data_source": "default",
        }
        for index, correct in ((0, True), (1, False))
    ]


def test_every_trajectory_is_in_one_group_with_its_metadata() -> None:
    episodes = [_episode(task, index, "x", "x", "y") for task in "abc" for index in range(3)]
    groups = by_task_and_role(episodes, NoParams())
    grouped = [id(trajectory) for group in groups for trajectory in group.trajectories]
    assert sorted(grouped) == sorted(id(trajectory) for episode in episodes for trajectory in episode.trajectories)
    assert all(len(group.metadata) == len(group.trajectories) for group in groups)


def test_task_ids_may_contain_colons() -> None:
    (group,) = by_task_and_role([_episode("math:algebra:7", 2, "agent")], NoParams())
    assert (group.group_id, group.group_role) == ("math:algebra:7:agent", "agent")
    assert (group.metadata[0]["task_id"], group.metadata[0]["rollout_idx"]) == ("math:algebra:7", 2)


def test_metadata_is_json_data_whatever_the_workflow_put_in() -> None:
    episode = _episode("a", 0, "agent", correct=np.bool_(True))  # type: ignore[arg-type]
    assert by_task_and_role([episode], NoParams())[0].metadata[0]["is_correct"] is True


def test_no_episodes_give_no_groups() -> None:
    assert by_task_and_role([], NoParams()) == []
    assert by_task_and_role([Episode(id="a:0")], NoParams()) == []


def test_there_is_a_mask_for_every_way_of_ending() -> None:
    assert {name for name in CompactFilteringSection.model_fields if name != "enable"} == set(MASKS)


@pytest.mark.parametrize("reason", TerminationReason)
def test_each_mask_takes_out_its_own_way_of_ending_only(reason: TerminationReason) -> None:
    only = dict.fromkeys(MASKS, False) | {f"mask_{reason.value}": True}
    masked = masked_reasons(_settings(True, only))
    assert masked == {reason}
    episodes = [Episode(id=f"{other.value}:0", termination_reason=other) for other in (*TerminationReason, reason)]
    kept, dropped = compact_filter(episodes, masked)
    assert [episode.termination_reason for episode in kept] == [other for other in TerminationReason if other != reason]
    assert dropped == {reason.value: 2}


def test_masks_do_nothing_unless_filtering_is_on() -> None:
    assert masked_reasons(_settings(False, dict.fromkeys(MASKS, True))) == frozenset()


def test_the_overlong_filter_masks_what_ran_out_of_room_turns_or_time() -> None:
    assert masked_reasons(_settings(False, dict.fromkeys(MASKS, True), overlong=True)) == OVERLONG
    assert {reason.value for reason in TerminationReason} - {reason.value for reason in OVERLONG} == {
        "env_done",
        "error",
        "unknown",
    }


def test_both_filters_together_mask_what_either_masks() -> None:
    only_errors = dict.fromkeys(MASKS, False) | {"mask_error": True}
    assert masked_reasons(_settings(True, only_errors, overlong=True)) == OVERLONG | {TerminationReason.ERROR}


def _said(*reasons: str) -> Trajectory:
    return Trajectory("agent", [Step([1], [2], [-1.0], info={"finish_reason": reason}) for reason in reasons])


def test_only_the_last_answer_decides_whether_a_trajectory_is_cut_off() -> None:
    episode = Episode(id="t:0", trajectories=[_said("length", "stop"), _said("stop", "length"), Trajectory("judge")])
    (kept,), count = drop_truncated([episode])
    assert kept.trajectories == [episode.trajectories[0], episode.trajectories[2]]
    assert (count, len(episode.trajectories)) == (1, 3)


def test_an_episode_that_loses_nothing_is_not_copied_and_one_that_loses_everything_is_gone() -> None:
    episodes = [
        Episode(id="t:0", trajectories=[_said("stop")]),
        Episode(id="t:1", trajectories=[_said("length"), _said("length")]),
    ]
    kept, count = drop_truncated(episodes)
    assert [id(episode) for episode in kept] == [id(episodes[0])]
    assert count == 2
    assert drop_truncated([]) == ([], 0)


def test_what_is_kept_is_kept_in_order_and_not_copied() -> None:
    episodes = [Episode(id=f"t:{index}", termination_reason=TerminationReason.ENV_DONE) for index in range(4)]
    episodes[2].termination_reason = TerminationReason.ERROR
    kept, dropped = compact_filter(episodes, frozenset({TerminationReason.ERROR}))
    assert [id(episode) for episode in kept] == [id(episodes[index]) for index in (0, 1, 3)]
    assert dropped.total() == 1
