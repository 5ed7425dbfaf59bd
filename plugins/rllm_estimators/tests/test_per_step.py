"""step_reinforce: against a loop over steps, by hand, and with steps without rewards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from expecting import expect_error
from hypothesis import given, strategies as st

from rllm_core.errors import AdvantageError

from .conftest import call, make_inputs

Steps = list[float]


def naive(groups: list[list[Steps]], gamma: float, divide: bool) -> list[float]:
    values = []
    for group in groups:
        returns = []
        for steps in group:
            returns += [sum(gamma**ahead * reward for ahead, reward in enumerate(steps[k:])) for k in range(len(steps))]
        scale = np.std(returns, ddof=1) + 1e-6 if divide and len(returns) > 1 else 1.0
        values += [(value - np.mean(returns)) / scale for value in returns]
    return values


def member(steps: Steps) -> dict[str, Any]:
    return {"reward": 99, "turns": [(1, 1 + index % 2) for index in range(len(steps))], "steps": steps}


STEPS = st.lists(st.integers(-8, 8).map(lambda eighths: eighths / 8), max_size=4)
GROUPS = st.lists(st.lists(STEPS, max_size=4), max_size=4)


@given(groups=GROUPS, gamma=st.sampled_from([0.0, 0.5, 0.9, 1.0]), divide=st.booleans())
def test_advantages_are_those_of_a_loop_over_steps(groups: list[list[Steps]], gamma: float, divide: bool) -> None:
    inputs = make_inputs([[member(steps) for steps in group] for group in groups])
    result = call("step_reinforce", inputs, gamma=gamma, norm_adv_by_std_in_grpo=divide)
    assert result.level == "step"
    # With a discount, returns that are equal on paper differ by rounding here and in the loop.
    assert result.values.tolist() == pytest.approx(naive(groups, gamma, divide), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("reward", [None, float("nan"), float("inf")])
def test_a_step_without_a_usable_reward_is_named(reward: float | None) -> None:
    bad = {"reward": 1, "turns": [(1, 2), (1, 2)], "steps": [1.0, reward]}
    inputs = make_inputs([[member([1.0])], [member([1.0]), bad]])
    with expect_error(AdvantageError, "missing-reward", "Step 1", "trajectory 1", "'t1:agent'"):
        call("step_reinforce", inputs)
