"""Fake rollouts: trajectories, groups and episodes of any shape, with the columns that backends and stages fill.

Every number of a trajectory is a function of its `uid`, so it does not depend on the trajectory's place in a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rllm_core.algorithms.columns import TOKEN_COLUMNS
from rllm_core.algorithms.grouping import describe
from rllm_core.data.batch import TokenBatch, TokenTargets
from rllm_core.data.types import Episode, TerminationReason, Trajectory, TrajectoryGroup
from rllm_core.seeding import derive_seed

VOCABULARY = 50
ROLE = "agent"
ROLES = ("solver", "judge")
FILLED = (
    *(name for name in TOKEN_COLUMNS if name != "sampling_logprobs"),
    *("advantages", "returns", "observation_weights", "targets"),
)
"""Columns of a batch that are empty until a backend or a stage fills them."""


class Member(NamedTuple):
    """A trajectory to be made."""

    reward: float
    turns: tuple[tuple[int, int], ...] = ((3, 2),)
    """Number of prompt tokens and of sampled tokens, for each model call."""


def make_trajectory(member: Member, uid: str, role: str = ROLE) -> Trajectory:
    """Make a trajectory. Its steps share its reward equally."""
    trajectory = Trajectory(role, reward=member.reward, uid=uid)
    history: list[int] = []
    for number, (observed, sampled) in enumerate(member.turns):
        history += _random(uid, "observed", number).integers(VOCABULARY, size=observed).tolist()
        random = _random(uid, "sampled", number)
        response = random.integers(VOCABULARY, size=sampled)
        logprobs = -random.exponential(1.0, sampled) - 0.01
        trajectory.add_step(history, response, logprobs, reward=member.reward / len(member.turns), text="some words")
        history += response.tolist()
    return trajectory


def make_episodes(seed: int, tasks: int, rollouts: int) -> list[Episode]:
    """Rollouts of some tasks. Each of `ROLES` takes part up to twice, so some rollouts have no trajectory."""
    random = np.random.default_rng(seed)
    episodes = []
    for task in range(tasks):
        for rollout in range(rollouts):
            cast = [role for role in ROLES for _ in range(random.integers(3))]
            reward = int(random.integers(5)) / 4
            uid = f"task-{task}:{rollout}"
            episodes.append(
                Episode(
                    id=uid,
                    trajectories=[
                        make_trajectory(Member(reward), f"{uid}/{number}", role) for number, role in enumerate(cast)
                    ],
                    is_correct=reward > 0.5,
                    termination_reason=TerminationReason.ENV_DONE,
                )
            )
    return episodes


def make_groups(members: Sequence[Sequence[Member]], prefix: str = "task") -> list[TrajectoryGroup]:
    """One group per list; a trajectory whose reward is above 0 counts as correct."""
    groups = []
    for task, listed in enumerate(members):
        group = TrajectoryGroup(group_id=f"{prefix}-{task}:{ROLE}", trajectories=[])
        for rollout, member in enumerate(listed):
            episode = Episode(
                id=f"{prefix}-{task}:{rollout}",
                trajectories=[make_trajectory(member, f"{prefix}-{task}:{rollout}/{ROLE}")],
                is_correct=member.reward > 0,
                termination_reason=TerminationReason.ENV_DONE,
            )
            group.trajectories += episode.trajectories
            group.metadata.append(describe(episode))
        groups.append(group)
    return groups


def random_members(seed: int, sizes: Sequence[int]) -> list[list[Member]]:
    """Groups of these sizes; rewards are eighths from 0 to 1, some are equal, and some trajectories have no tokens."""
    random = np.random.default_rng(seed)
    shapes = [((3, 2),), ((1, 1),), ((4, 5),), ((2, 2), (3, 1)), ((1, 3), (2, 2), (1, 4)), ((2, 0),)]
    return [
        [Member(int(random.integers(9)) / 8, shapes[random.integers(len(shapes))]) for _ in range(size)]
        for size in sizes
    ]


def fill(batch: TokenBatch, names: Collection[str]) -> TokenBatch:
    """Return the batch with the columns in both `names` and `FILLED`: plausible numbers where `loss_mask`, else 0."""
    trajectories = [trajectory for group in batch.groups for trajectory in group.trajectories]
    columns = {}
    if "targets" in names:
        batch = replace(batch, targets=_targets(int(batch.loss_mask.sum())))
    for name in sorted(set(FILLED).intersection(names) - {"targets"}):
        column = np.zeros(len(batch.tokens), np.float32)
        for row in range(batch.n_rows):
            part = slice(batch.row_offsets[row], batch.row_offsets[row + 1])
            sampled = batch.loss_mask[part]
            random = _random(trajectories[batch.trajectory[row]].uid, name)
            column[part][sampled] = _plausible(name, batch.sampling_logprobs[part][sampled], random)
        columns[name] = column
    return batch.with_columns(**columns)


def _targets(sampled: int) -> TokenTargets:
    """Two tokens at each position, with the probabilities 0.6 and 0.3."""
    return TokenTargets(
        ids=np.tile(np.arange(2, dtype=np.int32), (sampled, 1)),
        logprobs=np.tile(np.log(np.array([0.6, 0.3], np.float32)), (sampled, 1)),
        weight=1.0,
        beta=0.5,
    )


def _plausible(name: str, logprobs: NDArray[np.float32], random: np.random.Generator) -> NDArray[np.float64]:
    count = len(logprobs)
    match name:
        case "values" | "returns":
            return random.normal(0.5, 0.3, count)
        case "advantages":
            return random.normal(0.0, 1.0, count)
        case "sum_pi_squared" | "observation_weights":
            return random.uniform(0.1, 1.0, count)
        case "old_logprobs":
            return np.minimum(logprobs + random.normal(0.0, 0.05, count), -1e-3)
        case _:
            return np.minimum(logprobs + random.normal(0.0, 0.5, count), -1e-3)


def _random(*place: str | int) -> np.random.Generator:
    return np.random.default_rng(derive_seed(0, *place))
