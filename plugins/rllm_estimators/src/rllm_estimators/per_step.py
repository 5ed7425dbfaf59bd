"""Estimators of one number per step: (n_step,) float64, in the order in which trajectories hold their steps."""

from __future__ import annotations

from rllm_core.algorithms import segments
from rllm_core.algorithms.normalisation import EPSILON
from rllm_core.contracts.estimator import AdvantageInput, Advantages
from rllm_estimators.options import StepReinforceParams
from rllm_estimators.recurrence import backward_sums, unless_last
from rllm_estimators.sampled import check_step_rewards


def step_reinforce(inputs: AdvantageInput, params: StepReinforceParams) -> Advantages:
    """(G - mean) / (std + 1e-6), G_k = r_k + gamma G_{k+1}, over all steps of the group, ddof 1 (ROLL).

    G_k is what a step and those after it in its trajectory earned; trajectories' own rewards are ignored. With
    `norm_adv_by_std_in_grpo` false nothing is divided. Exactly 0 where all G of a group are equal, so also in a
    group with one step; ROLL gives 0 as well where the std is at most 1e-6.

    Raises:
        AdvantageError: a step has no finite reward.
    """
    check_step_rewards(inputs, "choose an estimator that goes by the rewards of trajectories")
    returns = backward_sums(inputs.step_rewards, unless_last(params.gamma, inputs.step_offsets))
    offsets = inputs.step_offsets[inputs.group_offsets]
    values = segments.centred(returns, offsets)
    if params.norm_adv_by_std_in_grpo:
        deviations = segments.standard_deviations(returns, offsets, ddof=1)
        values /= segments.spread(deviations + EPSILON, offsets)
    return Advantages(values=values, level="step")
