"""Groupings that are wrong in one way each, and what the contract tells their authors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rllm_core.algorithms.grouping import by_task_and_role
from rllm_core.contracts import GroupingPlugin, NoParams
from rllm_core.data.types import Episode, TrajectoryGroup
from rllm_plugin_kit import GroupingContract

Function = Callable[[Sequence[Episode], NoParams], Any]


def record(function: Function) -> GroupingPlugin[NoParams]:
    return GroupingPlugin(name="mine", summary="Mine.", params=NoParams, load=lambda: function)


def of(change: Callable[[list[TrajectoryGroup]], Any]) -> Function:
    """Return a grouping that changes the groups by task and role."""
    return lambda episodes, params: change(by_task_and_role(episodes, params))


ONE = "every_trajectory_is_in_exactly_one_group"


def also_by_task(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    everybody = [trajectory for episode in episodes for trajectory in episode.trajectories]
    return [*by_task_and_role(episodes, params), TrajectoryGroup(group_id="all:agent", trajectories=everybody)]


def one_entry_per_group(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    groups = by_task_and_role(episodes, params)
    return [TrajectoryGroup(group_id=g.group_id, trajectories=g.trajectories, metadata=g.metadata[:1]) for g in groups]


def keeps_the_episode(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    return [
        TrajectoryGroup(group_id=e.id, trajectories=e.trajectories, metadata=[{"episode": e}] * len(e.trajectories))
        for e in episodes
    ]


def in_fours(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    everybody = [trajectory for episode in episodes for trajectory in episode.trajectories]
    return [
        TrajectoryGroup(group_id=f"{start}:agent", trajectories=everybody[start : start + 4])
        for start in range(0, len(everybody), 4)
    ]


def empties_episodes(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    groups = by_task_and_role(episodes, params)
    for episode in episodes:
        episode.trajectories.clear()
    return groups


def test_a_good_grouping_has_no_complaints(complaints: Any) -> None:
    assert complaints(GroupingContract, record(by_task_and_role)) == {}


@pytest.mark.parametrize(
    ("function", "test", "told"),
    [
        (of(lambda groups: [group for group in groups if group.group_role != "judge"]), ONE, "Put every trajectory"),
        (lambda episodes, params: by_task_and_role(copy.deepcopy(episodes), params), ONE, "trajectories that are"),
        (also_by_task, ONE, "Put every trajectory"),
        (
            one_entry_per_group,
            "metadata_has_one_entry_per_trajectory",
            "`rllm_core.algorithms.grouping.describe(episode)`",
        ),
        (keeps_the_episode, "metadata_has_one_entry_per_trajectory", "metadata that is"),
        (in_fours, "order_of_episodes_has_no_effect", "Group by properties"),
        (empties_episodes, "it_does_not_change_episodes", "changes the episodes"),
        (of(lambda groups: groups or None), "no_episodes_give_no_groups", "returned None. Return"),
        (lambda episodes, params: [episode.trajectories[0] for episode in episodes], ONE, "IndexError"),
        (
            of(lambda groups: [*groups, TrajectoryGroup(group_id="rest:agent", trajectories=[])]),
            "no_episodes_give_no_groups",
            "returns 1 groups",
        ),
    ],
)
def test_contract_reports_the_mistake(complaint: Any, function: Function, test: str, told: str) -> None:
    assert told in complaint(GroupingContract, record(function), test)
