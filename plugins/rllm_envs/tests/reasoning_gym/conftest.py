"""Entries as the environment asks them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rllm_core.data.types import Task
from rllm_envs.reasoning_gym.environment import ReasoningGym
from rllm_envs.reasoning_gym.options import ReasoningGymParams

Scored = tuple[ReasoningGym, Any]


@pytest.fixture
def open_task() -> Callable[..., Scored]:
    """Make an environment with options and start it on a training task; gives it and what it shows first."""

    def open_task(generator: str, index: int = 0, **options: Any) -> Scored:
        params = ReasoningGymParams(generator=generator, **{"train_size": 8, **options})
        world = ReasoningGym(params)
        task: Task = ReasoningGym.tasks("train", params)[index]
        return world, world.reset(task.data)

    return open_task
