"""rae and spo against their formulas over several steps, and mix against the sum of its parts."""

from __future__ import annotations

import numpy as np
import pytest

from rllm_core.algorithms.advantage import whiten
from rllm_core.algorithms.estimation import to_tokens
from rllm_estimators.options import MixParams, RaeParams, SpoParams
from rllm_estimators.stateful import Mixture, RoleBaseline, TaskBaseline

from .conftest import call, make_inputs

STEPS = [[[1.0, 0.0], [0.0]], [[1.0, 1.0], [1.0]], [[0.0, 1.0], [0.0]]]
GROUPS = [[1.0, 0.0, 0.5], [0.0, 1.0]]


def test_rae_with_one_trajectory_equals_its_formula() -> None:
    estimator, mean = RoleBaseline(), 0.0
    for reward in (1.0, 0.0, 0.5, 1.0):
        mean = 0.9 * mean + 0.1 * reward
        found = estimator(make_inputs([[reward]]), RaeParams(decay=0.9))
        assert found.values == pytest.approx([reward - mean])


def test_rae_of_equal_rewards_ignores_batch_size() -> None:
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


def test_mix_is_the_weighted_sum_of_its_parts() -> None:
    inputs, solo, mixture = make_inputs(GROUPS), TaskBaseline(), Mixture()
    params = MixParams(
        parts=["rllm-estimators/dr_grpo", {"name": "rllm-estimators/spo", "retention": 0.5}], weights=[0.75, -2.0]
    )
    for _ in range(2):
        results = [(0.75, call("dr_grpo", inputs)), (-2.0, solo(inputs, SpoParams(retention=0.5)))]
        expected = sum(weight * to_tokens(inputs, each, "a part", "trajectory") for weight, each in results)
        assert mixture(inputs, params).values == pytest.approx(expected)


def test_mix_restores_the_states_of_its_parts() -> None:
    params = MixParams(parts=["rllm-estimators/rae", "rllm-estimators/spo", "rllm-core/grpo"])
    whole, resumed = Mixture(), Mixture()
    whole(make_inputs(GROUPS), params)
    resumed.load_state_dict(whole.state_dict())
    found = [each(make_inputs(GROUPS), params).values for each in (whole, resumed)]
    assert np.array_equal(*found)
