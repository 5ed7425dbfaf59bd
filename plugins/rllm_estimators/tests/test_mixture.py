"""mix against the sum of its parts."""

from __future__ import annotations

import numpy as np
import pytest

from rllm_core.algorithms.estimation import to_tokens
from rllm_estimators.mixture import Mixture
from rllm_estimators.options import MixParams, SpoParams
from rllm_estimators.running import TaskBaseline

from .conftest import call, make_inputs

GROUPS = [[1.0, 0.0, 0.5], [0.0, 1.0]]


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
