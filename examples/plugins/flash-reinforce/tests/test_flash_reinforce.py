"""The contract of every estimator, and the numbers of this one."""

from dataclasses import replace

import numpy as np
import pytest
from rllm_core.algorithms.columns import build_estimator_input
from rllm_core.contracts import AdvantageInput
from rllm_core.data.batch import build_batch
from rllm_core.data.types import Step, Trajectory, TrajectoryGroup
from rllm_plugin_kit import EstimatorContract

from flash_reinforce.estimator import flash_reinforce, mean_binary_kl
from flash_reinforce.options import FlashReinforceParams


class TestFlashReinforce(EstimatorContract):
    name = "flash-reinforce/flash_reinforce"
    options = ({}, {"max_kl": 10.0})


def one_group(*rewards: float) -> AdvantageInput:
    """Return the inputs for rollouts with these rewards, each with two sampled tokens of probability 1/2."""
    rollouts = [Trajectory("agent", [Step([1], [2, 3], [np.log(0.5)] * 2)], reward=reward) for reward in rewards]
    groups = [TrajectoryGroup(group_id="task:agent", trajectories=rollouts)]
    inputs = build_estimator_input(build_batch(groups), np.array([True]))
    return replace(inputs, old_logprobs=inputs.sampling_logprobs)


def test_gate_drops_the_trajectory_and_keeps_the_mean() -> None:
    inputs = one_group(0.0, 1.0, 2.0)
    assert flash_reinforce(inputs, FlashReinforceParams()).values.tolist() == [-1.0, 0.0, 1.0]

    moved = inputs.old_logprobs.copy()
    moved[inputs.token_offsets[2] : inputs.token_offsets[3]] = np.log(0.25)
    far = replace(inputs, old_logprobs=moved)
    expected = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    assert mean_binary_kl(far) == pytest.approx([0.0, 0.0, expected])
    assert flash_reinforce(far, FlashReinforceParams()).values.tolist() == [-1.0, 0.0, 0.0]
