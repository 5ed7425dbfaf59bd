"""rae and spo against their formulas, over several steps."""

from __future__ import annotations

import numpy as np
import pytest

from rllm_core.algorithms.normalization import whiten
from rllm_estimators.options import RaeParams, SpoParams
from rllm_estimators.running import RoleBaseline, TaskBaseline

from .conftest import make_inputs

STEPS = [[[1.0, 0.0], [0.0]], [[1.0, 1.0], [1.0]], [[0.0, 1.0], [0.0]]]


def test_rae_is_its_formula_for_one_trajectory_per_step() -> None:
    estimator, mean = RoleBaseline(), 0.0
    for reward in (1.0, 0.0, 0.5, 1.0):
        mean = 0.9 * mean + 0.1 * reward
        found = estimator(make_inputs([[reward]]), RaeParams(decay=0.9))
        assert found.values == pytest.approx([reward - mean])


def test_rae_of_equal_rewards_does_not_depend_on_batch_size() -> None:
    together, separate = RoleBaseline(), RoleBaseline()
    together(make_inputs([[1.0, 1.0], [1.0]]), RaeParams())
    for _ in range(3):
        separate(make_inputs([[1.0]]), RaeParams())
    assert together.state_dict()["mean"] == pytest.approx(separate.state_dict()["mean"])


def test_spo_is_its_formula() -> None:
    params = SpoParams(retention=0.8, prior=0.25, prior_weight=4.0)
    estimator = TaskBaseline()
    counts = [[1.0, 3.0], [1.0, 3.0]]
    for groups in STEPS:
        expected = [reward - a / (a + b) for group, (a, b) in zip(groups, counts, strict=True) for reward in group]
        found = estimator(make_inputs(groups), params)
        assert found.values == pytest.approx(whiten(np.array(expected)))
        counts = [
            [0.8 * a + sum(group), 0.8 * b + len(group) - sum(group)]
            for group, (a, b) in zip(groups, counts, strict=True)
        ]
