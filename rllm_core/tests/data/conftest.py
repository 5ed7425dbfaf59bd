"""Trajectories made of turns, and groups of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from rllm_core.data.types import Trajectory, TrajectoryGroup

MakeConversation = Callable[..., Trajectory]
MakeGroup = Callable[..., TrajectoryGroup]


@pytest.fixture
def conversation() -> MakeConversation:
    """A trajectory of turns that each add `prompt_tokens` tokens of prompt and `response_tokens` sampled ones."""

    def make(
        turns: int, prompt_tokens: int = 2, response_tokens: int = 3, name: str = "agent", reward: float = 0.0
    ) -> Trajectory:
        trajectory = Trajectory(name, reward=reward)
        history: list[int] = []
        for turn in range(turns):
            history += [100 + turn] * prompt_tokens
            response = [turn] * response_tokens
            trajectory.add_step(history, response, [-0.5] * response_tokens, weight_version=turn)
            history += response
        return trajectory

    return make


@pytest.fixture
def group() -> MakeGroup:
    def make(group_id: str, trajectories: Sequence[Trajectory]) -> TrajectoryGroup:
        return TrajectoryGroup(group_id=group_id, trajectories=list(trajectories))

    return make
