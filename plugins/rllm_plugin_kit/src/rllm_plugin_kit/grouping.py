"""The contract of groupings."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from rllm_core.contracts.grouping import GroupingPlugin
from rllm_core.data import codec
from rllm_core.data.types import Episode, Trajectory, TrajectoryGroup
from rllm_plugin_kit.plugin import PluginContract
from rllm_plugin_kit.samples import make_episodes


class GroupingContract(PluginContract[GroupingPlugin[Any]]):
    """Contract of every grouping."""

    kind = "grouping"

    def prepare(self, trajectory: Trajectory) -> None:
        """Set the fields of a trajectory that the grouping reads. Override it if it reads more than name and reward."""

    def test_every_trajectory_is_in_exactly_one_group(self, params: Any) -> None:
        episodes = self._episodes()
        given = {id(trajectory): trajectory.uid for episode in episodes for trajectory in episode.trajectories}
        grouped = Counter(id(member) for group in self._group(params, episodes) for member in group.trajectories)
        if copies := grouped.keys() - given.keys():
            raise self.failure(
                f"returns {len(copies)} trajectories that are not those it was given",
                "Pass trajectories on by reference; never copy them.",
            )
        if lost := [uid for key, uid in given.items() if key not in grouped]:
            raise self.failure(
                f"leaves {len(lost)} of {len(given)} trajectories out, such as {lost[0]!r}",
                "Put every trajectory into a group. Filters and rejection modes select the groups to train on.",
            )
        if twice := [given[key] for key, count in grouped.items() if count > 1]:
            raise self.failure(
                f"puts {len(twice)} trajectories into more than one place, such as {twice[0]!r}",
                "Put every trajectory into one group, once.",
            )

    def test_metadata_has_one_entry_per_trajectory(self, params: Any) -> None:
        for group in self._group(params, self._episodes()):
            if len(group.metadata) not in (0, len(group.trajectories)):
                raise self.failure(
                    f"gives group {group.group_id!r} {len(group.trajectories)} trajectories and {len(group.metadata)} "
                    "metadata entries",
                    "Append `rllm_core.algorithms.grouping.describe(episode)` for each trajectory, or none at all.",
                )
            try:
                json.dumps(group.metadata)
            except (TypeError, ValueError) as error:
                raise self.failure(
                    f"gives group {group.group_id!r} metadata that is not JSON data: {error}",
                    "Keep numbers, text, lists and mappings in it: groups that wait are part of checkpoints.",
                ) from error

    def test_order_of_episodes_has_no_effect(self, params: Any) -> None:
        episodes = self._episodes()
        order = np.random.default_rng(0).permutation(len(episodes))
        shuffled = [episodes[place] for place in order]
        if _partition(self._group(params, episodes)) != _partition(self._group(params, shuffled)):
            raise self.failure(
                "groups trajectories differently when episodes come in a different order",
                "Group by properties of a trajectory (its task, role, rollout), not by its position in the list.",
            )

    def test_no_episodes_give_no_groups(self, params: Any) -> None:
        if groups := self._group(params, []):
            raise self.failure(f"returns {len(groups)} groups for no episodes", "Return an empty list.")

    def test_it_does_not_change_episodes(self, params: Any) -> None:
        episodes = self._episodes()
        before, members = _serialize_episodes(episodes), [list(episode.trajectories) for episode in episodes]
        self._group(params, episodes)
        if _serialize_episodes(episodes) != before or [episode.trajectories for episode in episodes] != members:
            raise self.failure(
                "changes the episodes it is given",
                "Build lists of your own, and leave episodes and trajectories as they are.",
            )

    def _episodes(self) -> list[Episode]:
        episodes = make_episodes(seed=0, tasks=6, rollouts=4)
        for episode in episodes:
            for trajectory in episode.trajectories:
                self.prepare(trajectory)
        return episodes

    def _group(self, params: Any, episodes: Sequence[Episode]) -> list[TrajectoryGroup]:
        with self.explain_errors(
            f"failed on {len(episodes)} episodes",
            "Episodes without trajectories, roles that take part twice, and no episodes at all do occur.",
        ):
            groups = self.load_plugin()(episodes, params)
        if not isinstance(groups, list) or not all(isinstance(group, TrajectoryGroup) for group in groups):
            raise self.failure(f"returned {groups!r:.80}", "Return a list of TrajectoryGroup.")
        return groups


def _partition(groups: Sequence[TrajectoryGroup]) -> set[tuple[str, frozenset[str]]]:
    """Roles of the groups and who is in them."""
    return {(group.group_role, frozenset(member.uid for member in group.trajectories)) for group in groups}


def _serialize_episodes(episodes: Sequence[Episode]) -> str:
    return json.dumps([codec.episode_to_json(episode) for episode in episodes])
