"""Estimators of one number per token: what is still to come from there, across everything the model only read.

Prompts and observations between sampled tokens neither discount nor restart anything. A trajectory's reward sits on its
last sampled token; with `use_step_rewards` each step's reward sits on the last token of that step (a step that sampled
nothing: on the token before it), the trajectory's own reward is ignored, and a step without a reward is an error.
Values are (n_token,) float64, 0 where the model sampled nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rllm_core.algorithms import segments
from rllm_core.algorithms.normalisation import whiten
from rllm_core.algorithms.segments import Offsets, Values
from rllm_core.contracts.estimator import AdvantageInput, Advantages
from rllm_core.errors import AdvantageError
from rllm_estimators.options import GaeParams, ReinforcePlusPlusParams
from rllm_estimators.parts import runs
from rllm_estimators.recurrence import backward_sums, sum_backward, unless_last
from rllm_estimators.sampled import final_rewards, rewards_of_steps, sampled_offsets, scatter


def reinforce_plus_plus(inputs: AdvantageInput, params: ReinforcePlusPlusParams) -> Advantages:
    """whiten(G), G_t = r_t + gamma G_{t+1} (REINFORCE++, Hu 2025, arXiv:2501.03262).

    Whitening is (x - mean) / sqrt(variance + 1e-8) over all sampled tokens of the role, ddof 1; exactly 0 when all G
    are equal, and for a single token, where verl raises ValueError.
    """
    offsets = sampled_offsets(inputs)
    if params.use_step_rewards:
        returns = backward_sums(rewards_of_steps(inputs, offsets), unless_last(params.gamma, offsets))
    else:
        returns = _discounted(inputs.rewards, params.gamma, offsets)
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
    for first, last in runs(inputs.token_offsets):
        tokens = slice(*inputs.token_offsets[[first, last]].tolist())
        sampled = slice(*offsets[[first, last]].tolist())
        values[sampled] = inputs.values[tokens][inputs.loss_mask[tokens]]
        own = offsets[first : last + 1] - sampled.start
        _from_rewards_to_advantages(advantages[sampled], values[sampled], own, params)
    values += advantages
    returns = scatter(values, inputs.loss_mask)
    if params.whiten:
        advantages = whiten(advantages)
    return Advantages(values=scatter(advantages, inputs.loss_mask), level="token", returns=returns)


def _from_rewards_to_advantages(column: Values, values: Values, offsets: Offsets, params: GaeParams) -> None:
    """In place; all of some trajectories' sampled tokens."""
    # 0 at the last token of a trajectory: nothing is expected beyond.
    coefficients = unless_last(params.gamma, offsets)
    column -= values
    column[:-1] += coefficients[:-1] * values[1:]
    lengths = segments.sizes(offsets)
    coefficients *= params.lam if params.lam_alpha is None else np.repeat(_adaptive(lengths, params.lam_alpha), lengths)
    sum_backward(column, coefficients)


def _adaptive(lengths: NDArray[np.int64], alpha: float) -> Values:
    """(n,) the length-adaptive lambda, at least 0."""
    shares: Values = np.maximum(1.0 - 1.0 / (alpha * np.maximum(lengths, 1)), 0.0)
    return shares


def _discounted(rewards: Values, gamma: float, offsets: Offsets) -> Values:
    """(n_sampled,) what each trajectory's reward, on its last sampled token, is worth at its tokens."""
    lengths = segments.sizes(offsets)
    to_go = np.repeat(offsets[1:], lengths) - np.arange(1, int(offsets[-1]) + 1)
    worth: Values = gamma ** np.arange(lengths.max(initial=0))
    discounted: Values = segments.spread(rewards, offsets) * worth[to_go]
    return discounted
