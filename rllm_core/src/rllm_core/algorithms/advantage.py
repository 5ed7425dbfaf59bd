"""The core's four advantage estimators, and their normalization of rewards. They return one number per trajectory.

All take n_traj rewards in n_group groups and return (n_traj,) advantages, computed in float64. A group of equal rewards
gives exactly 0 before whitening. If libraries differ, the option `dialect` selects whose numbers to reproduce.

Rewards are finite, because the framework handles missing rewards before any estimator runs. TRL keeps a trajectory
without a reward in the batch, excludes it from the baseline and gives it advantage 0.
``rllm.algorithm.on_missing_reward=drop`` gives the rest of its group the same numbers, so no dialect checks for NaN.
"""

from __future__ import annotations

import math

import numpy as np

from rllm_core.algorithms import segments
from rllm_core.algorithms.options import GrpoParams, ReinforcePlusPlusBaselineParams, RlooParams
from rllm_core.algorithms.segments import Offsets, Values, find_power, scale
from rllm_core.contracts.estimator import AdvantageInput, Advantages
from rllm_core.contracts.params import NoParams

GRPO_DIALECTS = {"rllm": (0, 1e-6), "verl": (1, 1e-6), "trl": (1, 1e-4)}
"""Ddof of the group's standard deviation, and the epsilon added to it, by dialect."""


def grpo(inputs: AdvantageInput, params: GrpoParams) -> Advantages:
    """Compute (r - mean) / (std + epsilon) within the group (Shao et al. 2024, arXiv:2402.03300).

    Dialects:

    - `rllm`: std with ddof 0, epsilon 1e-6.
    - `verl`: ddof 1, epsilon 1e-6 (verl's `grpo`).
    - `trl`: ddof 1, epsilon 1e-4 (TRL's GRPOTrainer with `scale_rewards="group"`).

    If `norm_adv_by_std_in_grpo` is false, the result is r - mean (Liu et al. 2025, arXiv:2503.20783).

    For a group with one trajectory, `rllm` and `verl` give r / (1 + epsilon), or r without division. `trl` gives 0.
    """
    rewards, offsets = inputs.rewards, inputs.group_offsets
    ddof, epsilon = GRPO_DIALECTS[params.dialect]
    if params.norm_adv_by_std_in_grpo:
        values = standardize(rewards, offsets, ddof=ddof, epsilon=epsilon)
    else:
        values = minus_group_mean(rewards, offsets)
    if params.dialect == "trl":
        values[segments.alone(offsets)] = 0.0
    return Advantages(values=values, baselines=rewards - minus_group_mean(rewards, offsets))


def reinforce(inputs: AdvantageInput, params: NoParams) -> Advantages:
    """Return the reward itself, without a baseline (Williams 1992)."""
    return Advantages(values=inputs.rewards.copy())


def reinforce_plus_plus_baseline(inputs: AdvantageInput, params: ReinforcePlusPlusBaselineParams) -> Advantages:
    """Compute r - group mean, then normalize over all groups of the role (Hu 2025, arXiv:2501.03262).

    `rllm`: divide by (std + 1e-6), ddof 0, over trajectories. A group with one trajectory gets 0.

    `verl`: (x - mean) / sqrt(variance + 1e-8), ddof 1, over sampled tokens, so each trajectory is weighted by its
    number of tokens. A group with one trajectory enters with its reward. Subtracting the mean shifts all groups of the
    role, as in verl, so a group of equal rewards gets the value of this shift. The result is exactly 0 if all values
    are equal. It is also 0 for a single sampled token, for which verl raises ValueError.
    """
    rewards, offsets = inputs.rewards, inputs.group_offsets
    if params.dialect == "verl":
        values = whiten(minus_group_mean(rewards, offsets), inputs.response_lengths.astype(np.float64))
        return Advantages(values=values, baselines=rewards - minus_group_mean(rewards, offsets))
    centred = segments.center(rewards, offsets)
    everything = np.array([0, len(rewards)])
    (deviation,) = segments.standard_deviations(centred, everything)
    return Advantages(values=centred / (deviation + EPSILON), baselines=rewards - centred)


def rloo(inputs: AdvantageInput, params: RlooParams) -> Advantages:
    """Compute r - mean of the group's other trajectories, n / (n - 1) * (r - mean) (Ahmadian et al., arXiv:2402.14740).

    A group with one trajectory keeps its reward in `rllm` and `verl` (verl's `rloo`; its `rloo_vectorized` gives 0). It
    gets 0 in `trl` (TRL's RLOOTrainer, without the KL term and `normalize_advantages`).
    """
    offsets = inputs.group_offsets
    baseline = segments.center if params.dialect == "trl" else minus_group_mean
    sizes = segments.sizes(offsets)
    factors = sizes / np.maximum(sizes - 1, 1)
    values = baseline(inputs.rewards, offsets) * segments.spread(factors, offsets)
    return Advantages(values=values, baselines=inputs.rewards - values)


EPSILON = 1e-6
"""Added to a group's standard deviation before dividing by it."""
WHITENING_EPSILON = 1e-8
"""Added to the variance over all tokens before dividing by its root."""


def minus_group_mean(rewards: Values, offsets: Offsets) -> Values:
    """Return reward - group mean, (n,). It is exactly 0 in a group of equal rewards.

    A group with one trajectory has no mean to compare with, so it keeps its reward.
    """
    return np.where(segments.alone(offsets), rewards, segments.center(rewards, offsets))


def standardize(rewards: Values, offsets: Offsets, *, ddof: int, epsilon: float = EPSILON) -> Values:
    """Return `minus_group_mean` / (group standard deviation + epsilon), (n,). A group with one trajectory has deviation
    1."""
    deviations = segments.standard_deviations(rewards, offsets, ddof=ddof)
    deviations[segments.sizes(offsets) == 1] = 1.0
    return minus_group_mean(rewards, offsets) / segments.spread(deviations + epsilon, offsets)


def whiten(values: Values, weights: Values | None = None) -> Values:
    """Return (value - mean) / sqrt(variance + 1e-8), (n,), with the variance at ddof 1.

    Each value counts `weights` times (whole numbers, or once if None). The result is exactly 0 if all counted values
    are equal. It is also 0 for a single value, for which verl raises ValueError.
    """
    counted = values if weights is None else values[weights > 0]
    if not counted.size or counted.max() == counted.min():
        return np.zeros(len(values))
    # Only large values are scaled, because squares of small values are negligible compared to the epsilon. The result
    # does not depend on the scale.
    power = max(0, find_power(counted))
    values = scale(values, -power)
    total = float(len(values) if weights is None else weights.sum())
    distances: Values = values - _weighted_sum(values, weights) / total
    variance = _weighted_sum(distances * distances, weights) / (total - 1)
    distances /= math.sqrt(variance + math.ldexp(WHITENING_EPSILON, -2 * power))
    return distances


def _weighted_sum(values: Values, weights: Values | None) -> float:
    return float(values.sum() if weights is None else np.einsum("i,i->", values, weights))
