"""Estimators of one number per token or step: what is still to come, across everything the model only read.

Prompts and observations between sampled tokens neither discount nor restart anything. A trajectory's reward sits on its
last sampled token; with `use_step_rewards` each step's reward sits on the last token of that step (a step that sampled
nothing: on the token before it), the trajectory's own reward is ignored, and a step without a reward is an error.
Values are (n_token,) float64, 0 where the model sampled nothing.
Estimators of one number per step return (n_step,) float64, in the order of the steps in each trajectory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rllm_core.algorithms import segments
from rllm_core.algorithms.advantage import EPSILON, whiten
from rllm_core.algorithms.segments import Offsets, Values
from rllm_core.contracts.estimator import AdvantageInput, Advantages
from rllm_core.errors import AdvantageError
from rllm_estimators.options import GaeParams, ReinforcePlusPlusParams, StepReinforceParams
from rllm_estimators.sampled import (
    check_step_rewards,
    final_rewards,
    rewards_of_steps,
    sampled_offsets,
    scatter,
    split_runs,
)

CHUNK = 65_536
"""How many elements are worked on at a time: what is needed for them stays in the processor's cache."""
SHORT = 64
"""So few are added one by one."""


def backward_sums(terms: Values, coefficients: Values) -> Values:
    """(n,) y with y[t] = terms[t] + coefficients[t] * y[t + 1].

    Coefficients are from 0 to 1; 0 ends a sequence, so sequences that lie end to end do not touch, and the last
    coefficient must be 0. Nothing is divided, and the time is linear.
    """
    result = terms.copy()
    sum_backward(result, coefficients)
    return result


def sum_backward(terms: Values, coefficients: Values) -> None:
    """Compute `backward_sums` in place: the sums overwrite `terms`."""
    following = 0.0
    for end in range(len(terms), 0, -CHUNK):
        start = max(0, end - CHUNK)
        terms[end - 1] += coefficients[end - 1] * following
        _sum_chunk(terms[start:end], coefficients[start:end])
        following = terms[start]


def _sum_chunk(terms: Values, coefficients: Values) -> None:
    """The same for so few, with nothing after the last.

    Neighbors are joined in pairs, which gives the same recurrence of half the length: 2 n additions in log2(n) passes.
    """
    if len(terms) <= SHORT:
        running = 0.0
        sums = []
        for term, coefficient in zip(terms.tolist()[::-1], coefficients.tolist()[::-1], strict=True):
            running = term + coefficient * running
            sums.append(running)
        terms[:] = sums[::-1]
        return
    pairs = len(terms) // 2
    near, reach = terms[::2].copy(), coefficients[::2].copy()
    near[:pairs] += reach[:pairs] * terms[1::2]
    reach[:pairs] *= coefficients[1::2]
    _sum_chunk(near, reach)
    terms[::2] = near
    between = len(near) - 1
    terms[1::2][:between] += coefficients[1::2][:between] * near[1:]


def zero_at_ends(coefficient: float, offsets: Offsets) -> Values:
    """(n,) coefficients for `backward_sums`: the same one, but 0 at the last element of each piece."""
    coefficients = np.full(int(offsets[-1]), coefficient)
    coefficients[offsets[1:][segments.sizes(offsets) > 0] - 1] = 0.0
    return coefficients


def step_reinforce(inputs: AdvantageInput, params: StepReinforceParams) -> Advantages:
    """(G - mean) / (std + 1e-6), G_k = r_k + gamma G_{k+1}, over all steps of the group, ddof 1 (ROLL).

    G_k is the discounted sum of the rewards of a step and of the later steps in its trajectory. The trajectories' own
    rewards are ignored. `norm_adv_by_std_in_grpo` false turns the division off. The advantage is exactly 0 if all G of
    a group are equal, so also in a group with one step. ROLL also returns 0 if the std is at most 1e-6.

    Raises:
        AdvantageError: a step has no finite reward.
    """
    check_step_rewards(inputs, "choose an estimator that goes by the rewards of trajectories")
    returns = backward_sums(inputs.step_rewards, zero_at_ends(params.gamma, inputs.step_offsets))
    offsets = inputs.step_offsets[inputs.group_offsets]
    values = segments.center(returns, offsets)
    if params.norm_adv_by_std_in_grpo:
        deviations = segments.standard_deviations(returns, offsets, ddof=1)
        values /= segments.spread(deviations + EPSILON, offsets)
    return Advantages(values=values, level="step")


def reinforce_plus_plus(inputs: AdvantageInput, params: ReinforcePlusPlusParams) -> Advantages:
    """whiten(G), G_t = r_t + gamma G_{t+1} (REINFORCE++, Hu 2025, arXiv:2501.03262).

    Whitening is (x - mean) / sqrt(variance + 1e-8) over all sampled tokens of the role, ddof 1; exactly 0 when all G
    are equal, and for a single token, where verl raises ValueError.
    """
    offsets = sampled_offsets(inputs)
    if params.use_step_rewards:
        returns = backward_sums(rewards_of_steps(inputs, offsets), zero_at_ends(params.gamma, offsets))
    else:
        returns = _discount_rewards(inputs.rewards, params.gamma, offsets)
    return Advantages(values=scatter(whiten(returns), inputs.loss_mask), level="token")


def gae(inputs: AdvantageInput, params: GaeParams) -> Advantages:
    """A_t = d_t + gamma lam A_{t+1}, d_t = r_t + gamma V_{t+1} - V_t (GAE, Schulman et al. 2015, arXiv:1506.02438).

    With `lam_alpha`, lam is 1 - 1 / (lam_alpha n) for a trajectory of n sampled tokens (VAPO, arXiv:2504.05118).
    V and A beyond a trajectory's last sampled token are 0. `returns` (n_token,) are A + V, targets for the critic;
    `whiten` (as in `reinforce_plus_plus`) comes after them.
    """
    if inputs.values is None:
        raise AdvantageError(
            "missing-estimator-input",
            "Estimator 'gae' needs `values` (n_token,), the critic's estimates.",
            "Choose a backend that has a critic, such as local, or another estimator.",
        )
    offsets = sampled_offsets(inputs)
    advantages = rewards_of_steps(inputs, offsets) if params.use_step_rewards else final_rewards(inputs, offsets)
    values = np.empty(len(advantages))
    for first, last in split_runs(inputs.token_offsets):
        tokens = slice(*inputs.token_offsets[[first, last]].tolist())
        sampled = slice(*offsets[[first, last]].tolist())
        values[sampled] = inputs.values[tokens][inputs.loss_mask[tokens]]
        own = offsets[first : last + 1] - sampled.start
        _compute_advantages(advantages[sampled], values[sampled], own, params)
    values += advantages
    returns = scatter(values, inputs.loss_mask)
    if params.whiten:
        advantages = whiten(advantages)
    return Advantages(values=scatter(advantages, inputs.loss_mask), level="token", returns=returns)


def _compute_advantages(column: Values, values: Values, offsets: Offsets, params: GaeParams) -> None:
    """In place; all of some trajectories' sampled tokens."""
    # 0 at the last token of a trajectory: nothing is expected beyond.
    coefficients = zero_at_ends(params.gamma, offsets)
    column -= values
    column[:-1] += coefficients[:-1] * values[1:]
    lengths = segments.sizes(offsets)
    coefficients *= (
        params.lam if params.lam_alpha is None else np.repeat(_adaptive_lambda(lengths, params.lam_alpha), lengths)
    )
    sum_backward(column, coefficients)


def _adaptive_lambda(lengths: NDArray[np.int64], alpha: float) -> Values:
    """(n,) the length-adaptive lambda, at least 0."""
    shares: Values = np.maximum(1.0 - 1.0 / (alpha * np.maximum(lengths, 1)), 0.0)
    return shares


def _discount_rewards(rewards: Values, gamma: float, offsets: Offsets) -> Values:
    """(n_sampled,) what each trajectory's reward, on its last sampled token, is worth at its tokens."""
    lengths = segments.sizes(offsets)
    to_go = np.repeat(offsets[1:], lengths) - np.arange(1, int(offsets[-1]) + 1)
    worth: Values = gamma ** np.arange(lengths.max(initial=0))
    discounted: Values = segments.spread(rewards, offsets) * worth[to_go]
    return discounted
