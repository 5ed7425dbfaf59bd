"""Runs and steps that the tests of trackers report."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import Episode, TerminationReason, Trajectory


@pytest.fixture
def make_step() -> Callable[..., TrainStep]:
    """A step with a rollout for each reward, which says it."""

    def make(number: int, *rewards: float | None) -> TrainStep:
        episodes = []
        for place, reward in enumerate(rewards):
            trajectory = Trajectory("agent", reward=reward, uid=f"t:{place}/agent")
            trajectory.add_step(
                [1], [2], [-1.0], text=f"<b>{reward}</b>", messages=[{"role": "user", "content": "a|b"}]
            )
            reason = TerminationReason.ENV_DONE
            episodes.append(Episode(id=f"t:{place}", trajectories=[trajectory], termination_reason=reason))
        return TrainStep(global_step=number, epoch=0, total_steps=9, tasks=[], generated=episodes)

    return make
