"""Concatenated sampled tokens of all trajectories, the rewards at these tokens, and work on a few groups at a time.

Time counts only sampled tokens, without prompts and observations. A trajectory's reward is at its last sampled token.
A step's own reward is at the step's last token. If the step sampled nothing, its reward is at the token before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.algorithms import segments
from rllm_core.algorithms.columns import TOKEN_COLUMNS, step_of_sampled
from rllm_core.algorithms.segments import Offsets, Values
from rllm_core.contracts.estimator import AdvantageInput, Advantages
from rllm_core.errors import AdvantageError

TOKENS = 65_536
"""A part ends with the piece that reaches so many.

The columns of a large batch do not fit into the processor's cache, and new memory from the system costs more than the
arithmetic on it. A part that fits makes the estimators here about twice as fast.
"""


def sampled_offsets(inputs: AdvantageInput) -> Offsets:
    """Return (n_traj + 1,) offsets of each trajectory's tokens among the sampled tokens."""
    return np.concatenate(([0], np.cumsum(inputs.response_lengths)))


def scatter(sampled: Values, loss_mask: NDArray[np.bool_]) -> Values:
    """Return (n_token,) values: each sampled token's value at its place, 0 elsewhere."""
    values = np.zeros(len(loss_mask))
    values[loss_mask] = sampled
    return values


def final_rewards(inputs: AdvantageInput, offsets: Offsets) -> Values:
    """(n_sampled,) each trajectory's reward on its last sampled token, 0 on the others."""
    rewards = np.zeros(int(offsets[-1]))
    filled = segments.sizes(offsets) > 0
    rewards[offsets[1:][filled] - 1] = inputs.rewards[filled]
    return rewards


def rewards_of_steps(inputs: AdvantageInput, offsets: Offsets) -> Values:
    """(n_sampled,) each step's reward on its last sampled token, 0 on the others.

    Raises:
        AdvantageError: a step has no finite reward.
    """
    check_step_rewards(inputs, "set use_step_rewards to false")
    positions = _positions_of_steps(inputs, offsets)
    placed = positions >= 0
    rewards = np.zeros(int(offsets[-1]))
    rewards += np.bincount(positions[placed], inputs.step_rewards[placed], minlength=len(rewards))
    return rewards


def check_step_rewards(inputs: AdvantageInput, otherwise: str) -> None:
    """Every step must have a finite reward.

    Raises:
        AdvantageError: with the first step that has none, and `otherwise` as what else one can do.
    """
    missing = np.flatnonzero(~np.isfinite(inputs.step_rewards))
    if not missing.size:
        return
    step = int(missing[0])
    trajectory = int(np.searchsorted(inputs.step_offsets, step, side="right")) - 1
    raise AdvantageError(
        "missing-reward",
        f"Step {step - int(inputs.step_offsets[trajectory])} of {trajectory_name(inputs, trajectory)} has no usable "
        f"reward ({inputs.step_rewards[step]}), but the estimator uses the rewards of steps.",
        f"Set a finite reward on every step in the workflow (0 for no reward), or {otherwise}.",
    )


def trajectory_name(inputs: AdvantageInput, trajectory: int) -> str:
    """Return a name of a trajectory for messages: its place in its group, and the group."""
    group = int(np.searchsorted(inputs.group_offsets, trajectory, side="right")) - 1
    place = trajectory - int(inputs.group_offsets[group])
    return f"trajectory {place} in group {inputs.groups[group].group_id!r}"


def _positions_of_steps(inputs: AdvantageInput, offsets: Offsets) -> NDArray[np.int64]:
    """(n_step,) which sampled token each step's reward sits on; -1 in a trajectory that sampled nothing."""
    n_step = len(inputs.step_rewards)
    positions = np.full(n_step, -1)
    # Assigned in the order of the tokens, so that each step keeps its last.
    positions[step_of_sampled(inputs)] = np.arange(int(offsets[-1]))
    nearest = np.maximum.accumulate(np.where(positions >= 0, np.arange(n_step), -1))
    owner = np.repeat(np.arange(len(inputs.rewards)), segments.sizes(inputs.step_offsets))
    before = np.where(nearest >= inputs.step_offsets[owner], positions[nearest], offsets[owner])
    before[segments.sizes(offsets)[owner] == 0] = -1
    return before


def split_runs(starts: Offsets) -> Iterator[tuple[int, int]]:
    """First and last (exclusive) of pieces that lie end to end, about TOKENS tokens at a time.

    Args:
        starts: (n_piece + 1,) where each begins. One run when there is no token.
    """
    reached = np.unique(np.searchsorted(starts, np.arange(TOKENS, int(starts[-1]), TOKENS)))
    n_pieces = len(starts) - 1
    return pairwise([0, *reached[reached < n_pieces].tolist(), n_pieces])


def estimate_in_parts(inputs: AdvantageInput, estimate: Callable[[AdvantageInput], Advantages]) -> Advantages:
    """Call `estimate` on a few groups at a time and return its result for all groups.

    Args:
        inputs: any number of groups.
        estimate: returns (n_token,) values, and `returns` always or never. A group's values must not depend on other
            groups.
    """
    values = np.empty(len(inputs.loss_mask))
    returns: Values | None = None
    starts = inputs.token_offsets[inputs.group_offsets]
    for first, last in split_runs(starts):
        tokens = slice(*starts[[first, last]].tolist())
        result = estimate(_select_groups(inputs, first, last))
        values[tokens] = result.values
        if result.returns is not None:
            returns = np.empty(len(values)) if returns is None else returns
            returns[tokens] = result.returns
    return Advantages(values=values, level="token", returns=returns)


def _select_groups(inputs: AdvantageInput, first: int, last: int) -> AdvantageInput:
    """Some groups. Columns are views."""
    trajectories = slice(*inputs.group_offsets[[first, last]].tolist())
    steps = slice(*inputs.step_offsets[[trajectories.start, trajectories.stop]].tolist())
    tokens = slice(*inputs.token_offsets[[trajectories.start, trajectories.stop]].tolist())
    columns = {name: getattr(inputs, name) for name in TOKEN_COLUMNS}
    per_token: dict[str, Any] = {name: None if column is None else column[tokens] for name, column in columns.items()}
    return replace(
        inputs,
        rewards=inputs.rewards[trajectories],
        group_offsets=inputs.group_offsets[first : last + 1] - trajectories.start,
        response_lengths=inputs.response_lengths[trajectories],
        step_offsets=inputs.step_offsets[trajectories.start : trajectories.stop + 1] - steps.start,
        step_rewards=inputs.step_rewards[steps],
        token_offsets=inputs.token_offsets[trajectories.start : trajectories.stop + 1] - tokens.start,
        loss_mask=inputs.loss_mask[tokens],
        groups=inputs.groups[first:last],
        greedy_rewards=None if inputs.greedy_rewards is None else inputs.greedy_rewards[trajectories],
        reward_components=None if inputs.reward_components is None else inputs.reward_components[trajectories],
        **per_token,
    )
