"""The estimator `example`: from rewards to one advantage per trajectory."""

from itertools import pairwise

import numpy as np
from rllm_core.contracts import AdvantageInput, Advantages

from rllm_example.options import ExampleEstimatorParams


def example_estimator(inputs: AdvantageInput, params: ExampleEstimatorParams) -> Advantages:
    """strength * (reward - median of the group), (n_traj,) float64.

    Each attempt is compared with a typical attempt at the same task. A group of equal rewards gives exactly 0: there is
    nothing to prefer. `AdvantageInput` says what else an estimator can see.
    """
    advantages = np.empty_like(inputs.rewards)
    for start, end in pairwise(inputs.group_offsets):
        rewards = inputs.rewards[start:end]
        advantages[start:end] = rewards - np.median(rewards)
    return Advantages(values=params.strength * advantages)
