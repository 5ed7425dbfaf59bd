"""Advantages of leaves, next to `rloo` and to numbers by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rllm.builtin.tree_rollouts.branch import Branch, Fork
from rllm.builtin.tree_rollouts.estimator import tree
from rllm_core.algorithms.advantage import rloo
from rllm_core.algorithms.columns import build_estimator_input
from rllm_core.algorithms.options import RlooParams
from rllm_core.contracts.estimator import AdvantageInput
from rllm_core.contracts.params import NoParams
from rllm_core.data.batch import build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup


def leaf(reward: float, *forks: Fork, name: str = "a") -> Trajectory:
    """Return a leaf with two calls, which sampled two tokens and one token."""
    trajectory = Trajectory("agent", reward=reward)
    trajectory.add_step([7], [8, 8], [-1.0, -1.0])
    trajectory.add_step([7, 8, 8, 7], [9], [-1.0])
    Branch(name, forks).store_in(trajectory)
    return trajectory


def inputs_of(*groups: Sequence[Trajectory]) -> AdvantageInput:
    made = [TrajectoryGroup(group_id=f"{number}:agent", trajectories=[*group]) for number, group in enumerate(groups)]
    return build_estimator_input(build_batch(made), np.ones(len(made), np.bool_))


def test_rollouts_without_forks_equal_rloo() -> None:
    rewards = np.random.default_rng(0).normal(size=(4, 5))
    inputs = inputs_of(*([leaf(reward, name=str(number)) for number, reward in enumerate(row)] for row in rewards))
    found, expected = tree(inputs, NoParams()), rloo(inputs, RlooParams())
    np.testing.assert_allclose(found.values[inputs.loss_mask], np.repeat(expected.values, 3), rtol=1e-12)
    np.testing.assert_allclose(found.baselines, expected.baselines, rtol=1e-12)


def test_advantages_change_at_the_fork() -> None:
    at_turn, in_response = Fork(1, 0, 0), Fork(0, 1, 0)
    trees = [
        [leaf(1.0, at_turn), leaf(0.0, at_turn._replace(child=1))],
        [leaf(1.0, in_response, name="b"), leaf(0.0, in_response._replace(child=1), name="b")],
        [leaf(0.2, name="c")],
    ]
    inputs = inputs_of([each for leaves in trees for each in leaves])
    root, other_root = 0.5 - (0.5 + 0.2) / 2, 0.2 - 0.5
    high, low = 1.0 - (0.0 + 0.35) / 2, 0.0 - (1.0 + 0.35) / 2
    rows = [[root, root, high], [root, root, low], [root, high, high], [root, low, low], [other_root] * 3]
    weights = np.array([1 / 2, 1 / 2, 1 / 2, 1 / 2, 1]) * 5 / 3
    found = tree(inputs, NoParams()).values[inputs.loss_mask].reshape(5, 3)
    np.testing.assert_allclose(found, weights[:, None] * np.array(rows), rtol=1e-12)


def test_branch_without_leaves_does_not_count() -> None:
    first, second = Fork(0, 1, 0), Fork(1, 0, 0)
    kept = [leaf(1.0, first, second), leaf(0.5, first._replace(child=1)), leaf(0.0, name="b")]
    inputs = inputs_of(kept)
    found = tree(inputs, NoParams()).values[inputs.loss_mask].reshape(3, 3)
    without_second = [leaf(1.0, first), *kept[1:]]
    expected = inputs_of(without_second)
    shown = tree(expected, NoParams()).values[expected.loss_mask].reshape(3, 3)
    assert found[0, 1] == shown[0, 1]
    assert found[1:].tolist() == shown[1:].tolist()
