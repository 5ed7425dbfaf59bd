"""Estimators of one number per token: what is still to come from there, across everything the model only read.

Prompts and observations between sampled tokens neither discount nor restart anything. A trajectory's reward sits on its
last sampled token; with `use_step_rewards` each step's reward sits on the last token of that step (a step that sampled
nothing: on the token before it), the trajectory's own reward is ignored, and a step without a reward is an error.
Values are (n_token,) float64, 0 where the model sampled nothing.
"""

from __future__ import annotations

import numpy as np

from rllm_core.algorithms.normalisation import whiten
from rllm_core.contracts.estimator import AdvantageInput, Advantages
from rllm_core.errors import AdvantageError
from rllm_estimators.options import GaeParams, ReinforcePlusPlusParams
from rllm_estimators.recurrence import backward_sums, unless_last
from rllm_estimators.sampled import final_rewards, rewards_of_steps, sampled_offsets, scatter


def reinforce_plus_plus(inputs: AdvantageInput, params: ReinforcePlusPlusParams) -> Advantages:
    """whiten(G), G_t = r_t + gamma G_{t+1} (REINFORCE++, Hu 2025, arXiv:2501.03262).

    Whitening is (x - mean) / sqrt(variance + 1e-8) over all sampled tokens of the role, ddof 1; exactly 0 when all G
    are equal, and for a single token, where verl raises ValueError.
    """
    offsets = sampled_offsets(inputs)
    rewards = rewards_of_steps(inputs, offsets) if params.use_step_rewards else final_rewards(inputs, offsets)
    returns = backward_sums(rewards, unless_last(params.gamma, offsets))
    return Advantages(values=scatter(whiten(returns), inputs.loss_mask), level="token")


def gae(inputs: AdvantageInput, params: GaeParams) -> Advantages:
    """A_t = d_t + gamma lam A_{t+1}, d_t = r_t + gamma V_{t+1} - V_t (GAE, Schulman et al. 2015, arXiv:1506.02438).

    V and A beyond a trajectory's last sampled token are 0. `returns` (n_token,) are A + V, targets for the critic;
    `whiten` (as in `reinforce_plus_plus`) comes after them.
    """
    if inputs.values is None:
        raise AdvantageError("Estimator 'gae' needs `values` (n_token,), the critic's estimates.")
    offsets = sampled_offsets(inputs)
    values = inputs.values[inputs.loss_mask].astype(np.float64)
    # What the critic expects from the next token on; nothing beyond a trajectory's last.
    following = unless_last(params.gamma, offsets)
    following[:-1] *= values[1:]
    errors = rewards_of_steps(inputs, offsets) if params.use_step_rewards else final_rewards(inputs, offsets)
    errors += following
    errors -= values
    advantages = backward_sums(errors, unless_last(params.gamma * params.lam, offsets))
    values += advantages
    returns = scatter(values, inputs.loss_mask)
    if params.whiten:
        advantages = whiten(advantages)
    return Advantages(values=scatter(advantages, inputs.loss_mask), level="token", returns=returns)
