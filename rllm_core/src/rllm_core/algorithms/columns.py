"""The input of an estimator: the columns of some groups of a batch."""

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
"""Key of `Trajectory.info`: the reason why a reward of ``rllm.reward`` is missing."""
EXTRACTED = "extracted"
"""Key of `Trajectory.info`: the answer that the rewards of ``rllm.reward`` extracted. Missing if none reports it."""
REWARD_COMPONENTS = "reward_components"
"""Key of `Trajectory.info` for the parts of a reward: a mapping of names to numbers that the workflow sets."""
GREEDY_REWARD = "greedy_reward"
"""Key of `Trajectory.info` for the greedy rollout's reward, which the stage `greedy_baseline` sets."""
TOKEN_COLUMNS = ("sampling_logprobs", "old_logprobs", "ref_logprobs", "values", "sum_pi_squared")


def build_estimator_input(
    batch: TokenBatch, chosen: NDArray[np.bool_], algorithm_config: AlgorithmSection | None = None
) -> AdvantageInput:
    """Return an estimator's input for some groups. Arrays are made read-only, because estimators must not change
    inputs.

    Args:
        batch: a batch whose groups have finite rewards.
        chosen: (n_group,) True for the groups to include.
        algorithm_config: passed on unchanged.

    Raises:
        AdvantageError: the reward parts of a trajectory are not a mapping of names to numbers.
    """
    groups = [group for group, wanted in zip(batch.groups, chosen, strict=True) if wanted]
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    rows = chosen[batch.group]
    tokens = mark_tokens(batch, chosen)
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


def mark_tokens(batch: TokenBatch, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return an array, (n_token,), that is True for the tokens of the chosen groups."""
    return np.repeat(chosen[batch.group], batch.row_lengths)


def step_of_sampled(inputs: AdvantageInput) -> NDArray[np.int64]:
    """Return the step index, (n_sampled,), of each token with `loss_mask` True, in the order of these tokens.

    Steps are numbered as in `step_rewards`. The steps of a trajectory may have a different order than their tokens, so
    they are matched by their spans.
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
    """Return the reward parts that all trajectories report in ``info["reward_components"]``, with their values."""
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
    """Return greedy rewards, (n_traj,), NaN for a trajectory without a greedy rollout. None if all are missing."""
    rewards = [trajectory.info.get(GREEDY_REWARD) for trajectory in trajectories]
    if all(reward is None for reward in rewards):
        return None
    return np.array([np.nan if reward is None else reward for reward in rewards], np.float64)


def _offsets(lengths: list[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int64)
