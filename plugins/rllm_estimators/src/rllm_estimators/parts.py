"""Per-token work done for a few groups at a time.

The columns of a large batch do not fit into the processor's cache, and memory fresh from the system costs more than the
arithmetic on it: a part that fits makes the estimators here about twice as fast, and what they need on top of their
results stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from rllm_core.algorithms.columns import TOKEN_COLUMNS
from rllm_core.algorithms.segments import Offsets, Values
from rllm_core.contracts.estimator import AdvantageInput, Advantages

TOKENS = 65_536
"""A part ends with the piece that reaches so many."""


def runs(starts: Offsets) -> Iterator[tuple[int, int]]:
    """First and last (exclusive) of pieces that lie end to end, about TOKENS tokens at a time.

    Args:
        starts: (n_piece + 1,) where each begins. One run when there is no token.
    """
    reached = np.unique(np.searchsorted(starts, np.arange(TOKENS, int(starts[-1]), TOKENS)))
    n_pieces = len(starts) - 1
    return pairwise([0, *reached[reached < n_pieces].tolist(), n_pieces])


def by_parts(inputs: AdvantageInput, estimate: Callable[[AdvantageInput], Advantages]) -> Advantages:
    """Call `estimate` on a few groups at a time and return its result for all groups.

    Args:
        inputs: any number of groups.
        estimate: returns (n_token,) values, and `returns` always or never. A group's values must not depend on other
            groups.
    """
    values = np.empty(len(inputs.loss_mask))
    returns: Values | None = None
    starts = inputs.token_offsets[inputs.group_offsets]
    for first, last in runs(starts):
        tokens = slice(*starts[[first, last]].tolist())
        result = estimate(_groups(inputs, first, last))
        values[tokens] = result.values
        if result.returns is not None:
            returns = np.empty(len(values)) if returns is None else returns
            returns[tokens] = result.returns
    return Advantages(values=values, level="token", returns=returns)


def _groups(inputs: AdvantageInput, first: int, last: int) -> AdvantageInput:
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
