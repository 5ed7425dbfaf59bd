"""The contract every estimator has to keep, and the numbers of this one."""

import numpy as np
from rllm_core.algorithms.columns import columns_of
from rllm_core.contracts import AdvantageInput
from rllm_core.data.batch import build_batch
from rllm_core.data.types import Step, Trajectory, TrajectoryGroup
from rllm_plugin_kit import EstimatorContract

from rllm_example.estimator import example_estimator
from rllm_example.options import ExampleEstimatorParams


class TestExampleEstimator(EstimatorContract):
    name = "rllm-example/example"
    options = ({}, {"strength": 2.0})


def one_group(*rewards: float) -> AdvantageInput:
    """What an estimator is given when there is one group of attempts with these rewards."""
    attempts = [Trajectory("agent", [Step([1], [2], [-0.5])], reward=reward) for reward in rewards]
    return columns_of(build_batch([TrajectoryGroup(group_id="task:agent", trajectories=attempts)]), np.array([True]))


def test_an_attempt_is_worth_what_it_has_over_a_typical_one() -> None:
    advantages = example_estimator(one_group(0.0, 0.5, 2.0), ExampleEstimatorParams())
    assert advantages.values.tolist() == [-0.5, 0.0, 1.5]
