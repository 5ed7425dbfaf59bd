"""The core's four advantage estimators, one number per trajectory.

Computed in float64. A group of equal rewards gives exactly 0 in every estimator that centres; a group of one has no
baseline, so its advantage is the reward itself (in `reinforce_plus_plus_baseline`: 0).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rllm_core.algorithms import segments
from rllm_core.algorithms.options import GrpoParams
from rllm_core.contracts.estimator import AdvantageInput, Advantages
from rllm_core.contracts.plugin import NoParams

EPSILON = 1e-6


def grpo(inputs: AdvantageInput, params: GrpoParams) -> Advantages:
    """(r - mean) / (std + 1e-6) within the group, std with ddof 0 (Shao et al. 2024, arXiv:2402.03300).

    With `norm_adv_by_std_in_grpo` false: r - mean (Liu et al. 2025, arXiv:2503.20783).
    """
    rewards, offsets = inputs.rewards, inputs.group_offsets
    alone = segments.sizes(offsets) == 1
    advantages = _centred(rewards, offsets)
    if params.norm_adv_by_std_in_grpo:
        deviations = segments.standard_deviations(rewards, offsets)
        deviations[alone] = 1.0
        advantages = advantages / segments.spread(deviations + EPSILON, offsets)
    return Advantages(values=advantages)


def reinforce(inputs: AdvantageInput, params: NoParams) -> Advantages:
    """The reward itself, without a baseline (Williams 1992)."""
    return Advantages(values=inputs.rewards.copy())


def reinforce_plus_plus_baseline(inputs: AdvantageInput, params: NoParams) -> Advantages:
    """r - group mean, divided by the std (ddof 0) of that over all trajectories of the role (arXiv:2501.03262)."""
    rewards, offsets = inputs.rewards, inputs.group_offsets
    centred = _centred(rewards, offsets)
    centred[np.repeat(segments.sizes(offsets) == 1, segments.sizes(offsets))] = 0.0
    if not centred.any():
        return Advantages(values=centred)
    return Advantages(values=centred / (centred.std() + EPSILON))


def rloo(inputs: AdvantageInput, params: NoParams) -> Advantages:
    """r - mean of the other trajectories of the group, which is n / (n - 1) * (r - mean) (arXiv:2402.14740)."""
    rewards, offsets = inputs.rewards, inputs.group_offsets
    sizes = segments.sizes(offsets).astype(np.float64)
    factors = np.where(sizes > 1, sizes / np.maximum(sizes - 1, 1), 1.0)
    return Advantages(values=_centred(rewards, offsets) * segments.spread(factors, offsets))


def _centred(rewards: NDArray[np.float64], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """r - group mean; exactly 0 where the group's rewards are equal; r where the group has one member."""
    centred = rewards - segments.spread(segments.means(rewards, offsets), offsets)
    # The mean of equal numbers is not always that number in floating point, so equality is tested on the rewards.
    equal = np.repeat(segments.constant(rewards, offsets), segments.sizes(offsets))
    alone = np.repeat(segments.sizes(offsets) == 1, segments.sizes(offsets))
    centred[equal] = 0.0
    centred[alone] = rewards[alone]
    return centred
