"""Estimators of one number per token: what is still to come from there, across everything the model only read.

Time counts sampled tokens: prompts and observations between them neither discount nor restart anything. A trajectory's
reward sits on its last sampled token; with `use_step_rewards` each step's reward sits on the last token of that step
(a step that sampled nothing: on the token before it), the trajectory's own reward is ignored, and a step without a
reward is an error. Values are (n_token,) float64, 0 where the model sampled nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rllm_core.algorithms import segments
from rllm_core.algorithms.estimation import step_of_sampled
from rllm_core.algorithms.segments import Offsets, Values
from rllm_core.contracts.estimator import AdvantageInput, Advantages
from rllm_core.errors import AdvantageError
from rllm_estimators.options import GaeParams, ReinforcePlusPlusParams
from rllm_estimators.recurrence import backward_sums
from rllm_estimators.statistics import whiten


def reinforce_plus_plus(inputs: AdvantageInput, params: ReinforcePlusPlusParams) -> Advantages:
    """whiten(G), G_t = r_t + gamma G_{t+1} (REINFORCE++, Hu 2025, arXiv:2501.03262).

    Whitening is (x - mean) / sqrt(variance + 1e-8) over all sampled tokens of the role, ddof 1; exactly 0 when all G
    are equal, and for a single token, where verl raises ValueError.
    """
    offsets = _sampled_offsets(inputs)
    rewards = _token_rewards(inputs, offsets, params.use_step_rewards)
    returns = backward_sums(rewards, _unless_last(params.gamma, offsets))
    return Advantages(values=_scatter(whiten(returns), inputs.loss_mask), level="token")


def gae(inputs: AdvantageInput, params: GaeParams) -> Advantages:
    """A_t = d_t + gamma lam A_{t+1}, d_t = r_t + gamma V_{t+1} - V_t (GAE, Schulman et al. 2015, arXiv:1506.02438).

    V and A beyond a trajectory's last sampled token are 0. `returns` (n_token,) are A + V, targets for the critic;
    `whiten` (as in `reinforce_plus_plus`) comes after them.
    """
    if inputs.values is None:
        raise AdvantageError("Estimator 'gae' needs `values` (n_token,), the critic's estimates.")
    offsets = _sampled_offsets(inputs)
    values = inputs.values[inputs.loss_mask].astype(np.float64)
    following = np.append(values[1:], 0.0)
    rewards = _token_rewards(inputs, offsets, params.use_step_rewards)
    errors = rewards + _unless_last(params.gamma, offsets) * following[: len(values)] - values
    advantages = backward_sums(errors, _unless_last(params.gamma * params.lam, offsets))
    returns = _scatter(advantages + values, inputs.loss_mask)
    if params.whiten:
        advantages = whiten(advantages)
    return Advantages(values=_scatter(advantages, inputs.loss_mask), level="token", returns=returns)


def _sampled_offsets(inputs: AdvantageInput) -> Offsets:
    """(n_traj + 1,) where each trajectory's tokens begin when only sampled ones are kept."""
    return np.concatenate(([0], np.cumsum(inputs.loss_mask)))[inputs.token_offsets]


def _scatter(sampled: Values, loss_mask: NDArray[np.bool_]) -> Values:
    values = np.zeros(len(loss_mask))
    values[loss_mask] = sampled
    return values


def _unless_last(coefficient: float, offsets: Offsets) -> Values:
    """(n_sampled,) the coefficient, but 0 at the last sampled token of each trajectory."""
    coefficients = np.full(int(offsets[-1]), coefficient)
    coefficients[offsets[1:][segments.sizes(offsets) > 0] - 1] = 0.0
    return coefficients


def _token_rewards(inputs: AdvantageInput, offsets: Offsets, use_step_rewards: bool) -> Values:
    """(n_sampled,) the reward that sits on each sampled token."""
    rewards = np.zeros(int(offsets[-1]))
    if use_step_rewards:
        _check_step_rewards(inputs)
        positions = _positions_of_steps(inputs, offsets)
        placed = positions >= 0
        rewards += np.bincount(positions[placed], inputs.step_rewards[placed], minlength=len(rewards))
    else:
        filled = segments.sizes(offsets) > 0
        rewards[offsets[1:][filled] - 1] = inputs.rewards[filled]
    return rewards


def _positions_of_steps(inputs: AdvantageInput, offsets: Offsets) -> NDArray[np.int64]:
    """(n_step,) which sampled token each step's reward sits on; -1 in a trajectory that sampled nothing."""
    n_step = len(inputs.step_rewards)
    positions = np.full(n_step, -1)
    # Assigned in the order of the tokens, so that each step keeps its last.
    positions[step_of_sampled(inputs)] = np.arange(int(offsets[-1]))
    nearest = np.maximum.accumulate(np.where(positions >= 0, np.arange(n_step), -1))
    owner = np.repeat(np.arange(len(inputs.rewards)), segments.sizes(inputs.step_offsets))
    before = np.where(nearest >= inputs.step_offsets[owner], positions[nearest], offsets[owner])
    before[segments.sizes(offsets)[owner] == 0] = -1
    return before


def _check_step_rewards(inputs: AdvantageInput) -> None:
    missing = np.flatnonzero(~np.isfinite(inputs.step_rewards))
    if not missing.size:
        return
    step = int(missing[0])
    trajectory = int(np.searchsorted(inputs.step_offsets, step, side="right")) - 1
    group = int(np.searchsorted(inputs.group_offsets, trajectory, side="right")) - 1
    raise AdvantageError(
        f"Step {step - int(inputs.step_offsets[trajectory])} of trajectory "
        f"{trajectory - int(inputs.group_offsets[group])} in group {inputs.groups[group].group_id!r} has no usable "
        f"reward ({inputs.step_rewards[step]}), and use_step_rewards is on.",
        "Have the workflow give every step a finite reward (0 where it earns none), or set use_step_rewards to false.",
    )
