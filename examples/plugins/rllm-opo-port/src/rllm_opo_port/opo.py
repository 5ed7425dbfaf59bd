"""The estimator: from rewards and lengths to one advantage per trajectory."""

from itertools import pairwise

import numpy as np
from rllm_core.contracts import AdvantageInput, Advantages, NoParams


def opo(inputs: AdvantageInput, params: NoParams) -> Advantages:
    """Return reward - sum(length * reward) / sum(length) of the group, (n_traj,) float64 (arXiv:2505.23585).

    A length is the number of sampled tokens in a trajectory. A group of one keeps its reward.
    """
    advantages = inputs.rewards.copy()
    for start, end in pairwise(inputs.group_offsets):
        rewards, lengths = inputs.rewards[start:end], inputs.response_lengths[start:end]
        if end - start > 1 and np.ptp(rewards) == 0:
            advantages[start:end] = 0.0  # a mean of equal numbers is not always that number
        elif end - start > 1 and lengths.sum() > 0:
            advantages[start:end] -= np.average(rewards, weights=lengths)
    return Advantages(values=advantages)
