"""A task with the rollouts at it that are stored."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from rllm_core.data.types import Episode, Task
from rllm_record.steps.rows import Sampler


@dataclass(frozen=True)
class StoredRollout:
    """An rollout at a task, and what sampled it."""

    episode: Episode
    sampler: Sampler


@dataclass(frozen=True, kw_only=True)
class StoredTask(Task):
    """A task whose rollouts are taken from a store."""

    rollouts: Sequence[StoredRollout] = field(default=(), compare=False, repr=False)

    def episodes(self) -> list[Episode]:
        """All rollouts, in their order, numbered from 0. Copies: stages of a step change them."""
        return [self._copy(index, rollout.episode) for index, rollout in enumerate(self.rollouts)]

    def _copy(self, index: int, stored: Episode) -> Episode:
        episode = copy.deepcopy(stored)
        episode.id, episode.data_source = f"{self.id}:{index}", self.data_source
        for trajectory in episode.trajectories:
            # The same rollout number may have been played in several steps of a run.
            trajectory.uid = f"{episode.id}{trajectory.uid.removeprefix(stored.id)}"
        return episode
