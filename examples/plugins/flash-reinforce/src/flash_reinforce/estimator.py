"""The estimator `flash_reinforce`: reward minus the mean reward of the batch, and a gate for off-policy sequences."""

import numpy as np
from numpy.typing import NDArray
from rllm_core.contracts import AdvantageInput, Advantages

from flash_reinforce.options import FlashReinforceParams

SMALLEST = 1e-6
"""Bound of probabilities, so that the logarithms are finite."""


def flash_reinforce(inputs: AdvantageInput, params: FlashReinforceParams) -> Advantages:
    """Return reward - mean reward of all trajectories of the role, (n_traj,) float64.

    A trajectory has advantage 0 if the mean binary KL divergence of its sampled tokens, between the sampler and the
    trainer, is above `max_kl`. The mean is over all trajectories, so that the gate does not move it.
    """
    rewards = inputs.rewards
    baseline = (
        rewards[0] if (rewards == rewards[:1]).all() and len(rewards) else rewards.mean() if len(rewards) else 0.0
    )
    kept = mean_binary_kl(inputs) <= params.max_kl
    return Advantages(values=np.where(kept, rewards - baseline, 0.0), baselines=np.full(len(rewards), baseline))


def mean_binary_kl(inputs: AdvantageInput) -> NDArray[np.float64]:
    """Return KL(sampler ‖ trainer) of "this token or any other", mean over sampled tokens, (n_traj,) in nats.

    A token without a log-prob of the sampler counts as 0.
    """
    assert inputs.sampling_logprobs is not None and inputs.old_logprobs is not None, "the plugin spec needs both"
    sampled = np.flatnonzero(inputs.loss_mask & ~np.isnan(inputs.sampling_logprobs))
    p, q = (
        np.exp(column[sampled].astype(np.float64)).clip(SMALLEST, 1 - SMALLEST)
        for column in (inputs.sampling_logprobs, inputs.old_logprobs)
    )
    kl = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    owners = np.searchsorted(inputs.token_offsets, sampled, side="right") - 1
    sums = np.bincount(owners, weights=kl, minlength=len(inputs.rewards))
    return sums / np.maximum(np.bincount(owners, minlength=len(inputs.rewards)), 1)
