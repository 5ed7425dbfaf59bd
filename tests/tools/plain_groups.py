"""Groups from plain rewards, and the columns that an estimator receives of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rllm_core.algorithms.columns import build_estimator_input
from rllm_core.contracts.estimator import AdvantageInput
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup

Rewards = Sequence[Sequence[float]]


def make_groups(
    rewards: Rewards, role: str = "agent", lengths: Sequence[Sequence[int]] | None = None
) -> list[TrajectoryGroup]:
    """Make one group per list, of one-turn trajectories with these rewards and numbers of sampled tokens (or 2)."""
    groups = []
    for task, members in enumerate(rewards):
        group = TrajectoryGroup(group_id=f"t{task}:{role}", trajectories=[])
        for index, reward in enumerate(members):
            length = lengths[task][index] if lengths else 2
            trajectory = Trajectory(role, reward=reward)
            trajectory.add_step([7, 8], [9] * length, [-1.0] * length)
            group.trajectories.append(trajectory)
            group.metadata.append({"task_id": f"t{task}", "rollout_idx": index, "is_correct": reward > 0})
        groups.append(group)
    return groups


def select_role(batch: TokenBatch, role_index: int) -> AdvantageInput:
    """Return the columns that the estimator of a role receives of a batch."""
    return build_estimator_input(
        batch, np.array([group.group_role == batch.roles[role_index] for group in batch.groups])
    )


def make_inputs(rewards: Rewards, lengths: Sequence[Sequence[int]] | None = None) -> AdvantageInput:
    """Return the columns that an estimator receives of such groups."""
    groups = make_groups(rewards, lengths=lengths) or [TrajectoryGroup(group_id="t:agent", trajectories=[])]
    return select_role(build_batch(groups), 0)
