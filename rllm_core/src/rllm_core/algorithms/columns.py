"""What an estimator is given: the columns of some groups of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.estimator import AdvantageInput
from rllm_core.data.batch import TokenBatch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.errors import AdvantageError
from rllm_core.schema.algorithm_sections import AlgorithmSection

REWARD_ERROR = "reward_error"
"""Key of `Trajectory.info`: why a reward of ``rllm.reward`` is missing."""
EXTRACTED = "extracted"
"""Key of `Trajectory.info`: what the rewards of ``rllm.reward`` took for the answer; not there where none says it."""
REWARD_COMPONENTS = "reward_components"
"""Key of `Trajectory.info` under which a workflow puts the parts of a reward: a mapping of names to numbers."""
GREEDY_REWARD = "greedy_reward"
"""Key of `Trajectory.info` under which the stage `greedy_baseline` puts the reward of the greedy attempt."""
TOKEN_COLUMNS = ("sampling_logprobs", "old_logprobs", "ref_logprobs", "values", "sum_pi_squared")


def columns_of(
    batch: TokenBatch, chosen: NDArray[np.bool_], algorithm_config: AlgorithmSection | None = None
) -> AdvantageInput:
    """The estimator's view of some groups. Arrays are made read-only: estimators must not change their inputs.

    Args:
        batch: its groups carry finite rewards.
        chosen: (n_group,) which of its groups.
        algorithm_config: handed on as it is.

    Raises:
        AdvantageError: what a trajectory reports as the parts of its reward is no mapping of names to numbers.
    """
    groups = [group for group, wanted in zip(batch.groups, chosen, strict=True) if wanted]
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    rows = chosen[batch.group]
    tokens = tokens_of(batch, chosen)
    # A trajectory may have no row (nothing sampled) or several (rewritten history), so lengths are summed by owner.
    within = np.cumsum(np.repeat(chosen, [len(group.trajectories) for group in batch.groups])) - 1
    lengths = np.bincount(
        within[batch.trajectory[rows]], weights=batch.row_lengths[rows], minlength=len(trajectories)
    ).astype(np.int64)
    names, components = _reward_components(groups)
    columns: dict[str, NDArray[Any] | None] = {
        "rewards": np.array([trajectory.reward for trajectory in trajectories], np.float64),
        "group_offsets": _offsets([len(group.trajectories) for group in groups]),
        "response_lengths": np.array([trajectory.response_length for trajectory in trajectories], np.int64),
        "step_offsets": _offsets([len(trajectory.steps) for trajectory in trajectories]),
        "step_rewards": np.array([np.nan if step.reward is None else step.reward for step in steps], np.float64),
        "token_offsets": _offsets(lengths),
        "loss_mask": batch.loss_mask[tokens],
        "reward_components": components,
        "greedy_rewards": _greedy_rewards(trajectories),
    }
    for name in TOKEN_COLUMNS:
        column = getattr(batch, name)
        columns[name] = None if column is None else column[tokens]
    for column in columns.values():
        if column is not None:
            column.flags.writeable = False
    return AdvantageInput(
        **columns,  # type: ignore[arg-type]
        groups=groups,
        component_names=names,
        algorithm_config=algorithm_config,
    )


def tokens_of(batch: TokenBatch, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(n_token,) True for the tokens of the chosen groups."""
    return np.repeat(chosen[batch.group], batch.row_lengths)


def step_of_sampled(inputs: AdvantageInput) -> NDArray[np.int64]:
    """(n_sampled,) which step sampled each token, in the order of the tokens where `loss_mask` is True.

    Steps are numbered as in `step_rewards`. A trajectory's steps may have been put into another order than their
    tokens have, so they are found by their spans.
    """
    spans = [
        (index, step.span.response_start, step.span.end)
        for index, trajectory in enumerate(trajectory for group in inputs.groups for trajectory in group.trajectories)
        for step in trajectory.steps
    ]
    trajectory, start, end = np.array(spans, np.int64).reshape(-1, 3).T
    order = np.lexsort((start, trajectory))
    return np.repeat(order, (end - start)[order])


def _reward_components(groups: Sequence[TrajectoryGroup]) -> tuple[tuple[str, ...], NDArray[np.float64] | None]:
    """The parts of the reward that all trajectories report in ``info["reward_components"]``, and their values."""
    parts = [_parts_of_reward(group, index) for group in groups for index in range(len(group.trajectories))]
    names = tuple(sorted(set(parts[0]).intersection(*parts[1:]))) if parts else ()
    if not names:
        return (), None
    return names, np.array([[part[name] for name in names] for part in parts], np.float64)


def _parts_of_reward(group: TrajectoryGroup, index: int) -> Mapping[str, float]:
    parts = group.trajectories[index].info.get(REWARD_COMPONENTS, {})
    if isinstance(parts, Mapping) and all(
        isinstance(name, str) and isinstance(value, Real | np.bool_) for name, value in parts.items()
    ):
        return parts
    raise AdvantageError(
        "bad-reward-component",
        f"info[{REWARD_COMPONENTS!r}] of trajectory {index} in group {group.group_id!r} is {parts!r:.80}.",
        'The workflow must put a mapping of names to numbers there, such as {"correct": 1.0, "format": 0.5}.',
    )


def _greedy_rewards(trajectories: Sequence[Trajectory]) -> NDArray[np.float64] | None:
    """(n_traj,) NaN where a trajectory has no greedy attempt to compare with; None when none has."""
    rewards = [trajectory.info.get(GREEDY_REWARD) for trajectory in trajectories]
    if all(reward is None for reward in rewards):
        return None
    return np.array([np.nan if reward is None else reward for reward in rewards], np.float64)


def _offsets(lengths: list[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int64)
