"""Groups from plain rewards, and what an estimator is given of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import settings

from rllm_core.algorithms.columns import columns_of
from rllm_core.contracts.estimator import AdvantageInput
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup

Rewards = Sequence[Sequence[float]]
MakeGroups = Callable[..., list[TrajectoryGroup]]
MakeInputs = Callable[..., AdvantageInput]
RoleColumns = Callable[[TokenBatch, int], AdvantageInput]

settings.register_profile("shared machine", deadline=None, max_examples=40)
settings.load_profile("shared machine")


def _groups(
    rewards: Rewards, role: str = "agent", said: Sequence[Sequence[int]] | None = None
) -> list[TrajectoryGroup]:
    groups = []
    for task, members in enumerate(rewards):
        group = TrajectoryGroup(group_id=f"t{task}:{role}", trajectories=[])
        for index, reward in enumerate(members):
            length = said[task][index] if said else 2
            trajectory = Trajectory(role, reward=reward)
            trajectory.add_step([7, 8], [9] * length, [-1.0] * length)
            group.trajectories.append(trajectory)
            group.metadata.append({"task_id": f"t{task}", "rollout_idx": index, "is_correct": reward > 0})
        groups.append(group)
    return groups


@pytest.fixture(scope="session")
def make_groups() -> MakeGroups:
    """Groups of one-turn trajectories with these rewards, group after group; `said` are numbers of sampled tokens."""
    return _groups


def _role_columns(batch: TokenBatch, role_index: int) -> AdvantageInput:
    return columns_of(batch, np.array([group.group_role == batch.roles[role_index] for group in batch.groups]))


@pytest.fixture(scope="session")
def role_columns() -> RoleColumns:
    """What the estimator of a role is given of a batch."""
    return _role_columns


@pytest.fixture(scope="session")
def make_inputs() -> MakeInputs:
    """The columns an estimator is given of such groups."""

    def make(rewards: Rewards, said: Sequence[Sequence[int]] | None = None) -> AdvantageInput:
        batch = build_batch(_groups(rewards, said=said) or [TrajectoryGroup(group_id="t:agent", trajectories=[])])
        return _role_columns(batch, 0)

    return make


@pytest.fixture
def two_turns() -> Trajectory:
    """Tokens: 2 heard, 1 said, 1 heard, 2 said."""
    trajectory = Trajectory("agent", reward=1.0)
    trajectory.add_step([1, 2], [3], [-1.0], reward=0.25)
    trajectory.add_step([1, 2, 3, 4], [5, 6], [-1.0, -1.0])
    return trajectory


@pytest.fixture
def rewritten() -> Trajectory:
    """Two segments: 1 heard, 1 said, 1 heard, 1 said; then 2 heard, 2 said."""
    trajectory = Trajectory("agent", reward=2.0)
    trajectory.add_step([1], [2], [-1.0])
    trajectory.add_step([1, 2, 3], [4], [-1.0])
    trajectory.add_step([9, 9], [5, 6], [-1.0, -1.0])
    return trajectory
