"""The core's four advantage estimators, one number per trajectory.

All take n_traj rewards in n_group groups and return (n_traj,) advantages, computed in float64. A group of equal rewards
gives exactly 0 before anything is whitened. Where libraries disagree, `dialect` names the one whose numbers come out.

Rewards are finite: the framework deals with missing ones before any estimator runs. TRL keeps a trajectory without a
reward in the batch, leaves it out of the baseline and gives it advantage 0; ``rllm.algorithm.on_missing_reward=drop``
gives the others of its group the same numbers, so no dialect looks for NaN.
"""

from __future__ import annotations

import numpy as np

from rllm_core.algorithms import segments
from rllm_core.algorithms.normalisation import EPSILON, minus_group_mean, standardised, whiten
from rllm_core.algorithms.options import GrpoParams, ReinforcePlusPlusBaselineParams, RlooParams
from rllm_core.contracts.estimator import AdvantageInput, Advantages
from rllm_core.contracts.plugin import NoParams

GRPO_DIALECTS = {"rllm": (0, 1e-6), "verl": (1, 1e-6), "trl": (1, 1e-4)}
"""Degrees of freedom taken off in the group's standard deviation, and what is added to it."""


def grpo(inputs: AdvantageInput, params: GrpoParams) -> Advantages:
    """(r - mean) / (std + epsilon) within the group (Shao et al. 2024, arXiv:2402.03300).

    `rllm`: std with ddof 0, epsilon 1e-6. `verl`: ddof 1, 1e-6 (its `grpo`). `trl`: ddof 1, 1e-4 (its GRPOTrainer with
    `scale_rewards="group"`). With `norm_adv_by_std_in_grpo` false: r - mean (Liu et al. 2025, arXiv:2503.20783).

    A group of one gets r / (1 + epsilon), or r when nothing is divided, in `rllm` and `verl`, and 0 in `trl`.
    """
    rewards, offsets = inputs.rewards, inputs.group_offsets
    ddof, epsilon = GRPO_DIALECTS[params.dialect]
    if params.norm_adv_by_std_in_grpo:
        values = standardised(rewards, offsets, ddof=ddof, epsilon=epsilon)
    else:
        values = minus_group_mean(rewards, offsets)
    if params.dialect == "trl":
        values[segments.alone(offsets)] = 0.0
    return Advantages(values=values, baselines=rewards - minus_group_mean(rewards, offsets))


def reinforce(inputs: AdvantageInput, params: NoParams) -> Advantages:
    """The reward itself, without a baseline (Williams 1992)."""
    return Advantages(values=inputs.rewards.copy())


def reinforce_plus_plus_baseline(inputs: AdvantageInput, params: ReinforcePlusPlusBaselineParams) -> Advantages:
    """r - group mean, then brought to one scale over all groups of the role (Hu 2025, arXiv:2501.03262).

    `rllm`: divided by (std + 1e-6), ddof 0, over trajectories; a group of one gets 0.
    `verl`: (x - mean) / sqrt(variance + 1e-8), ddof 1, over sampled tokens, so that a trajectory counts as often as it
    has tokens. A group of one goes in with its reward. What is taken off moves all groups of the role together, as in
    verl: a group of equal rewards then has the value that the shift gives it. Exactly 0 when nothing differs, and
    for a single sampled token, where verl raises ValueError.
    """
    rewards, offsets = inputs.rewards, inputs.group_offsets
    if params.dialect == "verl":
        values = whiten(minus_group_mean(rewards, offsets), inputs.response_lengths.astype(np.float64))
        return Advantages(values=values, baselines=rewards - minus_group_mean(rewards, offsets))
    centred = segments.centred(rewards, offsets)
    everything = np.array([0, len(rewards)])
    (deviation,) = segments.standard_deviations(centred, everything)
    return Advantages(values=centred / (deviation + EPSILON), baselines=rewards - centred)


def rloo(inputs: AdvantageInput, params: RlooParams) -> Advantages:
    """r - mean of the other trajectories of the group, n / (n - 1) * (r - mean) (Ahmadian et al., arXiv:2402.14740).

    A group of one has no others: it keeps its reward in `rllm` and in `verl` (its `rloo`; its `rloo_vectorized` gives
    0), and gets 0 in `trl` (its RLOOTrainer, with the KL term and `normalize_advantages` left out).
    """
    offsets = inputs.group_offsets
    baseline = segments.centred if params.dialect == "trl" else minus_group_mean
    sizes = segments.sizes(offsets)
    factors = sizes / np.maximum(sizes - 1, 1)
    values = baseline(inputs.rewards, offsets) * segments.spread(factors, offsets)
    return Advantages(values=values, baselines=inputs.rewards - values)
