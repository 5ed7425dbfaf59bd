"""Estimators that change what GRPO compares: liteppo, grpo_length, hierarchical_grpo and gigpo.

Advantages are (n_traj,), and (n_step,) of gigpo, in float64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rllm_core.algorithms import segments
from rllm_core.algorithms.advantage import minus_group_mean, standardize
from rllm_core.algorithms.segments import Offsets
from rllm_core.contracts.estimator import AdvantageInput, Advantages
from rllm_core.contracts.params import NoParams
from rllm_core.data.types import Step
from rllm_estimators.options import GigpoParams, GrpoLengthParams
from rllm_estimators.per_token import backward_sums, zero_at_ends
from rllm_estimators.sampled import check_step_rewards

BATCH_EPSILON = 1e-4
"""Added to the standard deviation over the role, as in TRL."""


def liteppo(inputs: AdvantageInput, params: NoParams) -> Advantages:
    """(r - group mean) / (std of all rewards of the role + 1e-4), ddof 1 (Lite PPO, Liu et al. 2025, arXiv:2508.08221).

    Equal to TRL's `scale_rewards="batch"`. A group of almost equal rewards does not get large advantages, because the
    divisor is the same for all groups. A group of one gets 0.
    """
    everything = np.array([0, len(inputs.rewards)])
    deviation = segments.standard_deviations(inputs.rewards, everything, ddof=1)
    return Advantages(values=segments.center(inputs.rewards, inputs.group_offsets) / (deviation + BATCH_EPSILON))


def grpo_length(inputs: AdvantageInput, params: GrpoLengthParams) -> Advantages:
    """GRPO of r + weight * l, with l = 0.5 - (length - shortest) / (longest - shortest) in the group.

    l is at most 0 for a trajectory whose reward is not above `correct_above`, and 0 if all lengths are equal. Use it if
    responses grow without getting better. Kimi k1.5, arXiv:2501.12599, section 2.3.3. GRPO has ddof 0 and + 1e-6.
    """
    offsets = inputs.group_offsets
    lengths = inputs.response_lengths.astype(np.float64)
    longest, shortest = (segments.spread(sign * segments.maxima(sign * lengths, offsets), offsets) for sign in (1, -1))
    bonus = np.where(longest > shortest, 0.5 - (lengths - shortest) / np.maximum(longest - shortest, 1.0), 0.0)
    bonus = np.where(inputs.rewards > params.correct_above, bonus, np.minimum(bonus, 0.0))
    return Advantages(values=standardize(inputs.rewards + params.weight * bonus, offsets, ddof=0))


def hierarchical_grpo(inputs: AdvantageInput, params: NoParams) -> Advantages:
    """GRPO within an episode for a role that it has several trajectories of, and within the group for other roles.

    For example, the solvers of one question are compared with each other, and proposers of questions over all episodes
    of a task. Episodes are told apart by the metadata of a group. ddof 0, + 1e-6, and a trajectory that has nothing to
    be compared with keeps its reward.
    """
    owner = np.repeat(np.arange(len(inputs.group_offsets) - 1), segments.sizes(inputs.group_offsets))
    order, offsets = _pieces(owner, _episodes(inputs))
    values = np.empty(len(inputs.rewards))
    values[order] = standardize(inputs.rewards[order], offsets, ddof=0)
    return Advantages(values=values)


def gigpo(inputs: AdvantageInput, params: GigpoParams) -> Advantages:
    """GRPO of the trajectory's reward, plus step_weight times GRPO of G over the steps of the group in an equal state.

    G_k = r_k + gamma G_{k+1} over the step rewards. A step's state is `info["state"]`, or the messages that the model
    received before it. A step whose state occurs once gets only its trajectory's advantage. Use it in environments
    whose states repeat. GiGPO, Feng et al. 2025, arXiv:2505.10978; ddof 1, + 1e-6.

    Raises:
        AdvantageError: a step has no finite reward.
    """
    check_step_rewards(inputs, "choose an estimator that uses the rewards of trajectories")
    scaled = params.norm_adv_by_std_in_grpo
    rewards, offsets = inputs.rewards, inputs.group_offsets
    of_episodes = standardize(rewards, offsets, ddof=1) if scaled else minus_group_mean(rewards, offsets)
    returns = backward_sums(inputs.step_rewards, zero_at_ends(params.gamma, inputs.step_offsets))
    step_group = np.repeat(np.arange(len(offsets) - 1), np.diff(inputs.step_offsets[offsets]))
    order, pieces = _pieces(step_group, _states(inputs))
    compared = standardize(returns[order], pieces, ddof=1) if scaled else minus_group_mean(returns[order], pieces)
    of_states = np.empty(len(returns))
    of_states[order] = np.where(segments.alone(pieces), 0.0, compared)
    values = segments.spread(of_episodes, inputs.step_offsets) + params.step_weight * of_states
    return Advantages(values=values, level="step")


def _pieces(*keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], Offsets]:
    """(n,) an order in which elements of equal keys are neighbors, and (n_piece + 1,) where each piece begins."""
    order = np.lexsort(keys[::-1])
    changes = np.any([np.diff(key[order]) != 0 for key in keys], axis=0)
    return order, np.concatenate(([0], np.flatnonzero(changes) + 1, [len(order)] if len(order) else [])).astype(int)


def _episodes(inputs: AdvantageInput) -> NDArray[np.int64]:
    """(n_traj,) a number for each trajectory's episode if the group has an episode with several; otherwise 0."""
    numbers: list[int] = []
    for group, size in zip(inputs.groups, segments.sizes(inputs.group_offsets).tolist(), strict=True):
        names = [(each.get("task_id"), each.get("rollout_idx")) for each in group.metadata]
        places = {name: place for place, name in enumerate(dict.fromkeys(names))}
        has_several = 0 < len(places) < size
        numbers += [places[name] for name in names] if has_several else [0] * size
    return np.array(numbers, np.int64)


def _states(inputs: AdvantageInput) -> NDArray[np.int64]:
    """Return (n_step,) numbers. Steps in an equal state have equal numbers; a step without a state has a unique one."""
    numbers: dict[object, int] = {}
    steps = [step for group in inputs.groups for trajectory in group.trajectories for step in trajectory.steps]
    return np.array([numbers.setdefault(_state(step) or place, len(numbers)) for place, step in enumerate(steps)], int)


def _state(step: Step) -> str:
    state = step.info.get("state", list(step.messages) or None)
    return "" if state is None else repr(state)
