"""Trajectories with several turns, and settings of property tests."""

from __future__ import annotations

import pytest

from rllm_core.data.types import Trajectory


@pytest.fixture
def two_turns() -> Trajectory:
    """Tokens: 2 prompt, 1 sampled, 1 prompt, 2 sampled."""
    trajectory = Trajectory("agent", reward=1.0)
    trajectory.add_step([1, 2], [3], [-1.0], reward=0.25)
    trajectory.add_step([1, 2, 3, 4], [5, 6], [-1.0, -1.0])
    return trajectory


@pytest.fixture
def rewritten() -> Trajectory:
    """Segments: 1 prompt, 1 sampled, 1 prompt, 1 sampled token. Then 2 prompt, 2 sampled tokens."""
    trajectory = Trajectory("agent", reward=2.0)
    trajectory.add_step([1], [2], [-1.0])
    trajectory.add_step([1, 2, 3], [4], [-1.0])
    trajectory.add_step([9, 9], [5, 6], [-1.0, -1.0])
    return trajectory
