"""Estimators that look at the parts of a reward."""

from __future__ import annotations

import numpy as np

from rllm_core.algorithms import segments
from rllm_core.algorithms.advantage import EPSILON, standardize, whiten
from rllm_core.algorithms.segments import Offsets, Values, scale
from rllm_core.contracts.estimator import AdvantageInput, Advantages
from rllm_core.errors import AdvantageError, did_you_mean
from rllm_estimators.centred import find_largest
from rllm_estimators.options import GdpoParams
from rllm_estimators.sampled import trajectory_name

ROUNDING = 1e-13
"""Relative to its terms, a sum this small is 0 that was rounded."""


def gdpo(inputs: AdvantageInput, params: GdpoParams) -> Advantages:
    """whiten(sum over components k of weight_k A_k), A_k standardized within the group (GDPO, arXiv:2601.05242).

    Reads `reward_components` (n_traj, k) and not the rewards; returns (n_traj,).

    `verl`: A_k = (r_k - group mean) / (group std + 1e-6), ddof 1, in a group of one r_k / (1 + 1e-6); then
    (x - mean) / sqrt(variance + 1e-8) over all sampled tokens of the role, ddof 1.
    `nemo`: A_k = (r_k - mean of the others) / (std of the others + 1e-6), ddof 1, not divided where that std is 0, and
    0 in a group of one; then (x - mean) / std over the trajectories of the role, ddof 1.

    A component that is equal throughout a group adds exactly 0 to it. The whitening moves all groups of a role
    together, in both libraries: a group of equal rewards then has the value that the shift gives it, the same for all
    its members. When no group has a difference, all advantages are exactly 0 (groups of one in `verl` aside).
    """
    components = _components(inputs, params)
    weights = [params.weights.get(name, 1.0) for name in inputs.component_names]
    standardize = _within_group if params.dialect == "verl" else _compare_to_others
    total, magnitude = np.zeros(len(components)), np.zeros(len(components))
    for weight, column in zip(weights, components.T, strict=True):
        part = weight * standardize(column, inputs.group_offsets)
        total += part
        magnitude += np.abs(part)
    if params.dialect == "verl":
        return Advantages(values=whiten(total, inputs.response_lengths.astype(np.float64)))
    # Components that cancel out leave rounding errors, which a division by their own std would blow up to size 1.
    total[np.abs(total) <= ROUNDING * magnitude] = 0.0
    everything = np.array([0, len(total)])
    (deviation,) = segments.standard_deviations(total, everything, ddof=1)
    return Advantages(values=segments.center(total, everything) / (deviation or 1.0))


def _within_group(rewards: Values, offsets: Offsets) -> Values:
    return standardize(rewards, offsets, ddof=1)


def _compare_to_others(rewards: Values, offsets: Offsets) -> Values:
    values, deviations = compare_to_others(rewards, offsets)
    return values / np.where(deviations > 0, deviations + EPSILON, 1.0)


def _components(inputs: AdvantageInput, params: GdpoParams) -> Values:
    """(n_traj, k) the components, checked."""
    if inputs.reward_components is None:
        if not len(inputs.rewards):
            return np.zeros((0, 0))
        raise AdvantageError(
            "missing-reward-component",
            "Estimator 'gdpo' needs the parts of the rewards, and no part is reported by all trajectories.",
            "The workflow must put them into every trajectory: "
            'trajectory.info["reward_components"] = {"correct": 1.0, "format": 0.5}.',
        )
    for name in params.weights:
        if name not in inputs.component_names:
            raise AdvantageError(
                "missing-reward-component",
                f"Estimator 'gdpo' has a weight for {name!r}, which is not a reward component of all trajectories.",
                did_you_mean(name, inputs.component_names)
                or f"All trajectories report {', '.join(inputs.component_names)}.",
            )
    unusable = np.argwhere(~np.isfinite(inputs.reward_components))
    if len(unusable):
        trajectory, component = (int(index) for index in unusable[0])
        raise AdvantageError(
            "bad-reward-component",
            f"Reward component {inputs.component_names[component]!r} of {trajectory_name(inputs, trajectory)} is "
            f"{inputs.reward_components[trajectory, component]}.",
            "Every component that the workflow reports must be a finite number.",
        )
    return inputs.reward_components


def compare_to_others(rewards: Values, offsets: Offsets) -> tuple[Values, Values]:
    """(n,) reward - mean of the group's other members, and (n,) the others' standard deviation with ddof 1.

    Both are exactly 0 in groups of one; the deviation is exactly 0 where the others are equal or there is but one.
    """
    sizes = segments.spread(segments.sizes(offsets).astype(np.float64), offsets)
    distance = segments.center(rewards, offsets)
    others = np.maximum(sizes - 1, 1)
    small, exponents = segments.in_range(distance, offsets)
    squares = segments.spread(segments.sums(small * small, offsets), offsets)
    # With d the distance from the mean, the others' squares about their own mean are sum(d^2) - d^2 n / (n - 1).
    variances = np.maximum(squares - small * small * sizes / others, 0.0) / np.maximum(sizes - 2, 1)
    deviations = scale(np.where(sizes > 2, np.sqrt(variances), 0.0), np.repeat(exponents, segments.sizes(offsets)))
    # That difference loses precision only if one member, the largest or the smallest, is further out than all others
    # together. For these members the deviation of the others is computed directly.
    for direction in (1.0, -1.0):
        _, outermost = find_largest(direction * rewards, offsets)
        rest = np.concatenate(([0], np.cumsum(~outermost)))[offsets]
        deviations[outermost] = segments.standard_deviations(rewards[~outermost], rest, ddof=1)[
            segments.sizes(offsets) > 0
        ]
    deviations[segments.in_constant(rewards, offsets)] = 0.0
    return distance * sizes / others, deviations
