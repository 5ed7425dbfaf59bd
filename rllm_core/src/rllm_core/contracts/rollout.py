"""Rollouts: a request for rollouts, and the runner that generates them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rllm_core.contracts.engine import SamplingParams
    from rllm_core.data.types import Episode, Task


@dataclass(frozen=True, kw_only=True)
class RolloutRequest:
    """A request to run every task `rollouts` times."""

    tasks: Sequence[Task]
    rollouts: int
    sampling: SamplingParams
    """Sampling settings. Their `seed` is the seed of the whole request. Each rollout derives its own seed."""
    label: str
    """Part of session names, such as ``train`` or ``val``. It separates training from validation."""
    priority: int = 0
    """Priority among concurrent requests. Rollouts of the request with the lowest number start first."""


class Runner(Protocol):
    """Generates rollouts with the run's workflow, agent and environment."""

    async def run(self, order: RolloutRequest) -> list[Episode]:
        """Return all episodes, ordered by task and then by rollout."""
        ...
