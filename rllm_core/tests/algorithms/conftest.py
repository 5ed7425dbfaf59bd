"""Trajectories with several turns, for tests of advantages."""

from __future__ import annotations

from typing import Any

import pytest

from rllm_core.data.types import Trajectory


def make_two_turns(first: Any = None, second: Any = None) -> Trajectory:
    """Return tokens: 2 prompt, 1 sampled, 1 prompt, 2 sampled. The arguments are advantages of the steps."""
    trajectory = Trajectory("agent", reward=1.0)
    trajectory.add_step([1, 2], [3], [-1.0], reward=0.25, advantage=first)
    trajectory.add_step([1, 2, 3, 4], [5, 6], [-1.0, -1.0], advantage=second)
    return trajectory


def make_rewritten(*advantages: Any) -> Trajectory:
    """Return segments: 1 prompt, 1 sampled, 1 prompt, 1 sampled token. Then 2 prompt, 2 sampled tokens."""
    first, second, third = advantages or (None, None, None)
    trajectory = Trajectory("agent", reward=2.0)
    trajectory.add_step([1], [2], [-1.0], advantage=first)
    trajectory.add_step([1, 2, 3], [4], [-1.0], advantage=second)
    trajectory.add_step([9, 9], [5, 6], [-1.0, -1.0], advantage=third)
    return trajectory


@pytest.fixture
def two_turns() -> Trajectory:
    return make_two_turns()


@pytest.fixture
def rewritten() -> Trajectory:
    return make_rewritten()
