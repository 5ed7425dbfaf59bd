"""The contract of every estimator, and the numbers of this one."""

import numpy as np
import pytest
from rllm_core.algorithms.columns import build_estimator_input
from rllm_core.contracts import AdvantageInput, NoParams
from rllm_core.data.batch import build_batch
from rllm_core.data.types import Step, Trajectory, TrajectoryGroup
from rllm_plugin_kit import EstimatorContract

from rllm_opo_port.opo import opo


class TestOpo(EstimatorContract):
    name = "rllm-opo-port/opo_port"


def group(*rollouts: tuple[float, int]) -> AdvantageInput:
    """Return one group of rollouts with these rewards and lengths."""
    trajectories = [
        Trajectory("agent", [Step([1], [2] * length, [-0.5] * length)], reward=reward) for reward, length in rollouts
    ]
    batch = build_batch([TrajectoryGroup(group_id="task:agent", trajectories=trajectories)])
    return build_estimator_input(batch, np.array([True]))


def test_a_long_response_counts_more_in_the_baseline() -> None:
    values = opo(group((1.0, 1), (0.0, 3)), NoParams()).values
    assert values == pytest.approx([0.75, -0.25])


def test_single_response_keeps_its_reward() -> None:
    assert opo(group((0.5, 4)), NoParams()).values == pytest.approx([0.5])
