"""Estimators of one number per trajectory from its reward and a baseline.

All functions take n_traj rewards in n_group groups and return (n_traj,) advantages in float64. If the compared rewards
are equal, the advantage is exactly 0. Each docstring describes the result for a group with one trajectory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rllm_core.algorithms import segments
from rllm_core.algorithms.advantage import EPSILON, minus_group_mean
from rllm_core.algorithms.segments import Offsets, Values
from rllm_core.contracts.estimator import AdvantageInput, Advantages
from rllm_core.contracts.params import NoParams
from rllm_core.errors import AdvantageError
from rllm_estimators.options import A2poParams, DrGrpoParams, GpgParams, GrpoPassKParams, MaxRlParams
from rllm_estimators.sampled import trajectory_name


def a2po(inputs: AdvantageInput, params: A2poParams) -> Advantages:
    """r - V, V = beta log mean(exp(r / beta)) over the group (A*-PO, Brantley et al. 2025, arXiv:2505.20686).

    V is the value of the best policy with a KL penalty of weight beta. The paper estimates it once, from samples of the
    reference model. Here it comes from the step's own group. A group of one gets 0. Made for loss `a2po`.
    """
    rewards, offsets = inputs.rewards, inputs.group_offsets
    # Relative to the best reward, so that no exponential overflows.
    distances = rewards - segments.spread(segments.maxima(rewards, offsets), offsets)
    shares = segments.spread(segments.means(np.exp(distances / params.beta), offsets), offsets)
    values = distances - params.beta * np.log(shares)
    return Advantages(values=np.where(segments.in_constant(rewards, offsets), 0.0, values))


def dr_grpo(inputs: AdvantageInput, params: DrGrpoParams) -> Advantages:
    """r - group mean (Dr.GRPO, Liu et al. 2025, arXiv:2503.20783).

    The paper's other half is the loss: divide it by a constant instead of by lengths, which is
    ``rllm.algorithm.loss_agg_mode: seq-mean-token-sum-norm``. A group of one keeps its reward (`verl`) or gets 0
    (`trl`).
    """
    baseline = minus_group_mean if params.dialect == "verl" else segments.center
    return Advantages(values=baseline(inputs.rewards, inputs.group_offsets))


def gpg(inputs: AdvantageInput, params: GpgParams) -> Advantages:
    """alpha (r - group mean) / f_norm, alpha = n_traj / number of non-zero rewards (GPG, arXiv:2504.02546).

    As in verl, alpha counts the rewards that are not 0 over the whole role, so shifting all rewards changes it, and is
    n_traj when all are 0. A group of one gets alpha r / f_norm. Made for loss `reinforce`.
    """
    rewards, offsets = inputs.rewards, inputs.group_offsets
    alpha = len(rewards) / max(int(np.count_nonzero(rewards)), 1)
    return Advantages(values=minus_group_mean(rewards, offsets) * (alpha / params.f_norm))


def grpo_passk(inputs: AdvantageInput, params: GrpoPassKParams) -> Advantages:
    """(best - second) / (group std + 1e-6) for the group's best trajectory, 0 for the others (arXiv:2503.19595).

    The std has ddof 1. `norm_adv_by_std_in_grpo` false turns the division off. If several trajectories are best, all
    get 0. A group with one trajectory gets 0 (verl raises ValueError).
    """
    rewards, offsets = inputs.rewards, inputs.group_offsets
    best, first = find_largest(rewards, offsets)
    second, _ = find_largest(np.where(first, -np.inf, rewards), offsets)
    margins = np.where(segments.sizes(offsets) > 1, best - second, 0.0)
    if params.norm_adv_by_std_in_grpo:
        margins = margins / (segments.standard_deviations(rewards, offsets, ddof=1) + EPSILON)
    return Advantages(values=np.where(first, segments.spread(margins, offsets), 0.0))


def maxrl(inputs: AdvantageInput, params: MaxRlParams) -> Advantages:
    """(r - group mean) / group mean (MaxRL, arXiv:2602.02710). Meant for rewards of 0 and 1.

    `prime_rl` gives 0 where the mean is not positive, so also to groups without a success, and to groups of one.
    `skyrl` divides by mean + 1e-6, so a negative mean reverses the signs. A group of one keeps its reward.
    """
    rewards, offsets = inputs.rewards, inputs.group_offsets
    means = segments.spread(segments.means(rewards, offsets), offsets)
    usable = means > 0
    if params.dialect == "skyrl":
        means = means + EPSILON
        usable = means != 0
    values = np.where(usable, segments.center(rewards, offsets) / np.where(usable, means, 1.0), 0.0)
    if params.dialect == "skyrl":
        values = np.where(segments.alone(offsets), rewards, values)
    return Advantages(values=values)


def opo(inputs: AdvantageInput, params: NoParams) -> Advantages:
    """r - sum(length r) / sum(length) within the group (OPO, Hao et al. 2025, arXiv:2505.23585).

    Lengths are the numbers of sampled tokens. A group of one keeps its reward. In a group that sampled nothing, whose
    advantages reach no token, all lengths count as 1.
    """
    rewards, offsets = inputs.rewards, inputs.group_offsets
    lengths = inputs.response_lengths.astype(np.float64)
    silent = segments.spread(segments.sums(lengths, offsets), offsets) == 0
    lengths = np.where(silent, 1.0, lengths)
    # About the plain mean first: weighting distances keeps digits that weighting large rewards would lose.
    distance = segments.center(rewards, offsets)
    shifts = segments.sums(distance * lengths, offsets) / np.maximum(segments.sums(lengths, offsets), 1.0)
    values = np.where(segments.in_constant(rewards, offsets), 0.0, distance - segments.spread(shifts, offsets))
    return Advantages(values=np.where(segments.alone(offsets), rewards, values))


def prpo(inputs: AdvantageInput, params: NoParams) -> Advantages:
    """(r - mean) / (std + 1e-6) over all trajectories of the role, std with ddof 0; groups do not matter (rLLM).

    Exactly 0 when all rewards of the role are equal, so also for a role with one trajectory.
    """
    everything = np.array([0, len(inputs.rewards)])
    values = segments.center(inputs.rewards, everything)
    return Advantages(values=values / (segments.standard_deviations(inputs.rewards, everything) + EPSILON))


def remax(inputs: AdvantageInput, params: NoParams) -> Advantages:
    """r - reward of the greedy rollout of the same task (ReMax, Li et al. 2023, arXiv:2310.10505).

    The paper's G_t - baseline per token: a trajectory's reward is its last token's, so G_t is r at all of them. Groups
    do not matter; a group of one is no special case.

    Raises:
        AdvantageError: a trajectory has no finite greedy reward.
    """
    greedy = inputs.greedy_rewards
    if greedy is None:
        greedy = np.full(len(inputs.rewards), np.nan)
    missing = np.flatnonzero(~np.isfinite(greedy))
    if missing.size:
        first = int(missing[0])
        raise AdvantageError(
            "missing-greedy-reward",
            f"Estimator 'remax' has no greedy reward to compare {trajectory_name(inputs, first)} with: "
            f"it is {greedy[first]}.",
            "Add the stage greedy_baseline, which makes one greedy rollout per task, or set "
            'trajectory.info["greedy_reward"] in the workflow.',
        )
    return Advantages(values=inputs.rewards - greedy, baselines=greedy)


def find_largest(rewards: Values, offsets: Offsets) -> tuple[Values, NDArray[np.bool_]]:
    """(n_group,) the largest reward of each group, and (n,) bool, the first element of each group that has it."""
    sizes = segments.sizes(offsets)
    tops = segments.maxima(rewards, offsets)
    positions = np.flatnonzero(rewards == segments.spread(tops, offsets))
    # Positions ascend, so the first of each group is where the group's number changes.
    owner = np.repeat(np.arange(len(sizes)), sizes)[positions]
    first = np.zeros(len(rewards), np.bool_)
    first[positions[np.flatnonzero(np.diff(owner, prepend=-1))]] = True
    return tops, first
