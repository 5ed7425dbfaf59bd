"""Rollouts: what is to be played, and what plays it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rllm_core.contracts.engine import SamplingParams
    from rllm_core.data.types import Episode, Task


@dataclass(frozen=True, kw_only=True)
class RolloutRequest:
    """What to play: every task `rollouts` times."""

    tasks: Sequence[Task]
    rollouts: int
    sampling: SamplingParams
    """Its `seed` is the seed of the whole order; every attempt derives its own."""
    label: str
    """Tells training from validation in session names, such as ``train`` or ``val``."""
    priority: int = 0
    """Of several orders that are played at once, attempts of the lowest go first."""
    task_batch: int | None = None
    """Number of the run's task batch that the tasks are from; None if they are from none, for example in validation."""


class Runner(Protocol):
    """Plays orders with the workflow, agent and environment of the run."""

    async def run(self, order: RolloutRequest) -> list[Episode]:
        """All episodes, task after task, rollout after rollout."""
        ...
