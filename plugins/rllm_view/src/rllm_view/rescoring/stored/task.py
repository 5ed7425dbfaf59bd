"""A task with the rollouts at it that are stored."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from rllm_core.contracts.renderer import Renderer
from rllm_core.data.types import Episode, Task
from rllm_core.errors import ConfigError
from rllm_record.steps.rows import Sampler
from rllm_record.tokenizer import tokenizer_of


def require_tokenizer(sampler: Sampler, renderer: Renderer | None) -> None:
    """Raise ConfigError if the trained model does not have the vocabulary that the tokens come from."""
    tokenizer = None if renderer is None else tokenizer_of(renderer)
    if None not in (sampler.tokenizer, tokenizer) and sampler.tokenizer != tokenizer:
        raise ConfigError(
            "tokenizer-mismatch",
            "The stored episodes and the trained model have different tokenizers.",
            "Train the model that sampled the episodes, or a model with the same vocabulary.",
        )


@dataclass(frozen=True)
class StoredRollout:
    """A rollout at a task, and what sampled it."""

    episode: Episode
    sampler: Sampler


@dataclass(frozen=True, kw_only=True)
class StoredTask(Task):
    """A task whose rollouts are taken from a store."""

    rollouts: Sequence[StoredRollout] = field(default=(), compare=False, repr=False)

    def episodes(self) -> list[Episode]:
        """All rollouts, in their order, numbered from 0. Copies: stages of a step change them."""
        return [self._copy(index, rollout.episode) for index, rollout in enumerate(self.rollouts)]

    def examples(self, renderer: Renderer) -> list[Episode]:
        """Return the rollouts for fine-tuning: their sampled tokens are trained.

        Raises:
            ConfigError: they were sampled with a different vocabulary.
        """
        for rollout in self.rollouts:
            require_tokenizer(rollout.sampler, renderer)
        return self.episodes()

    def _copy(self, index: int, stored: Episode) -> Episode:
        episode = copy.deepcopy(stored)
        episode.id, episode.data_source = f"{self.id}:{index}", self.data_source
        for trajectory in episode.trajectories:
            # The same rollout number may have been played in several steps of a run.
            trajectory.uid = f"{episode.id}{trajectory.uid.removeprefix(stored.id)}"
        return episode
