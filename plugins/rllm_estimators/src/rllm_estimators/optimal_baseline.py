"""Optimal token baselines: at each position, the group's returns weighted by how uncertain the policy was to get there.

(Li et al. 2026, arXiv:2602.07078; as in verl.) A token's weight is the squared length of its gradient in the logits,
w = 1 - 2 pi + sum over the vocabulary of pi^2, from `old_logprobs` and `sum_pi_squared`. A trajectory's weight W_t is
the sum of w over the tokens it has sampled up to t. The baseline at a position is
B_t = sum(G_t W_t) / (sum(W_t) + 1e-8) over the members of the group that sampled a token there, and A_t = G_t - B_t,
where G_t, the reward still to come, is the trajectory's reward at each of its tokens.

- Where all returns at a position are equal, the advantage is exactly 0 (in verl up to G 1e-8 / sum(W_t)).
- The longest trajectory of a group, where there is just one, has nothing to be compared with beyond the length of the
  second longest: B_t is 0 there, as everywhere in a group of one.

Values are (n_token,) float64, 0 where the model sampled nothing.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rllm_core.algorithms import segments
from rllm_core.algorithms.segments import Offsets, Values
from rllm_core.contracts.estimator import AdvantageInput, Advantages
from rllm_core.errors import AdvantageError
from rllm_estimators.centred import find_largest
from rllm_estimators.options import OtbParams
from rllm_estimators.sampled import estimate_in_parts, sampled_offsets, scatter

BASELINE_EPSILON = 1e-8
Positions = NDArray[np.int64]
"""(n_sampled,) position numbers. Tokens of a group's trajectories are compared if their numbers are equal."""


def otb(inputs: AdvantageInput, params: OtbParams) -> Advantages:
    """Optimal token baseline. Positions count all tokens, starting at the trajectory's first sampled token.

    Observations between sampled tokens have positions too. The tail still depends on the number of sampled tokens,
    as in verl.
    """
    return estimate_in_parts(inputs, lambda part: _over_all(part, params))


def tir_otb(inputs: AdvantageInput, params: OtbParams) -> Advantages:
    """Optimal token baseline for tool-integrated reasoning: positions counted over sampled tokens only."""
    return estimate_in_parts(inputs, lambda part: _over_sampled(part, params))


def _over_all(inputs: AdvantageInput, params: OtbParams) -> Advantages:
    offsets = sampled_offsets(inputs)
    places = np.flatnonzero(inputs.loss_mask)
    filled = segments.sizes(offsets) > 0
    first = np.zeros(len(filled), np.int64)
    first[filled] = places[offsets[:-1][filled]]
    return _estimate(inputs, params, offsets, places - np.repeat(first, segments.sizes(offsets)))


def _over_sampled(inputs: AdvantageInput, params: OtbParams) -> Advantages:
    offsets = sampled_offsets(inputs)
    return _estimate(inputs, params, offsets, np.arange(offsets[-1]) - np.repeat(offsets[:-1], segments.sizes(offsets)))


def _estimate(inputs: AdvantageInput, params: OtbParams, offsets: Offsets, positions: Positions) -> Advantages:
    weights = segments.running_sums(_squared_gradients(inputs, params, offsets), offsets)
    returns = segments.spread(inputs.rewards, offsets)
    cells, n_cells = _cells(offsets[inputs.group_offsets], positions)
    # Compare with any member's return: nothing differs from it only if all returns are equal. Distances from this
    # return would not do instead of returns: it would become the baseline of tokens with very small weights, and the
    # result would depend on the order of members.
    one = np.zeros(n_cells)
    one[cells] = returns
    differing = np.bincount(cells, returns != one[cells], n_cells) > 0
    totals = np.bincount(cells, weights, n_cells) + BASELINE_EPSILON
    baselines = np.where(differing, np.bincount(cells, returns * weights, n_cells) / totals, one)
    compared = positions < segments.spread(_ends(offsets, inputs.group_offsets), offsets)
    values = np.where(compared, returns - baselines[cells], returns)
    return Advantages(values=scatter(values, inputs.loss_mask), level="token")


def _squared_gradients(inputs: AdvantageInput, params: OtbParams, offsets: Offsets) -> Values:
    """(n_sampled,) w, times the squared rollout correction if there is one."""
    old = _column(inputs, inputs.old_logprobs, "old_logprobs")
    squares = _column(inputs, inputs.sum_pi_squared, "sum_pi_squared")
    # A squared length; float32 columns can make it a little less than 0.
    lengths = np.maximum(1.0 - 2.0 * np.exp(old) + squares, 0.0)
    if params.tis_mode is None:
        return lengths
    sampling = _column(inputs, inputs.sampling_logprobs, "sampling_logprobs")
    # As in `rllm_core.updates.losses.log_ratio` and `summable`: -inf on both sides is the ratio 1.
    log_ratios = np.subtract(old, sampling, out=np.zeros_like(old), where=old != sampling).clip(-1e9, 1e5)
    if params.tis_mode == "sequence":
        log_ratios = segments.spread(segments.sums(log_ratios, offsets), offsets)
    weighted: Values = lengths * np.exp(2.0 * np.minimum(log_ratios, math.log(params.tis_cap)))
    return weighted


def _column(inputs: AdvantageInput, column: NDArray[np.float32] | None, name: str) -> Values:
    """(n_sampled,) a column's values at the sampled tokens."""
    if column is None:
        raise AdvantageError(
            "missing-estimator-input",
            f"The optimal token baseline needs `{name}` (n_token,), and this batch has none.",
            "Choose a backend that computes it, or another estimator.",
        )
    values = column[inputs.loss_mask].astype(np.float64)
    if np.isnan(values).any():
        raise AdvantageError(
            "missing-estimator-input",
            f"The optimal token baseline needs `{name}`, and {int(np.isnan(values).sum())} of {len(values)} sampled "
            "tokens have none.",
            "Set its option tis_mode to null, or let the workflow pass `logprobs` to its steps.",
        )
    return values


def _cells(group_offsets: Offsets, positions: Positions) -> tuple[NDArray[np.int64], int]:
    """Return (n_sampled,) numbers, one per pair of group and position, and the count of numbers."""
    extents = segments.maxima(positions.astype(np.float64), group_offsets).astype(np.int64) + 1
    starts = np.concatenate(([0], np.cumsum(extents)))
    return positions + np.repeat(starts[:-1], segments.sizes(group_offsets)), int(starts[-1])


def _ends(offsets: Offsets, group_offsets: Offsets) -> Values:
    """(n_traj,) the position from which on a trajectory has no baseline; infinite for all but a group's longest."""
    lengths = segments.sizes(offsets).astype(np.float64)
    longest, first = find_largest(lengths, group_offsets)
    second, _ = find_largest(np.where(first, 0.0, lengths), group_offsets)
    ends = np.where(longest > second, second, np.inf)
    return np.where(first, segments.spread(ends, group_offsets), np.inf)
