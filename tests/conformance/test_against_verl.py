"""Our estimators and verl's own functions give the same numbers, and differ exactly where we say they do."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from .conftest import draw_groups, estimate

SEEDS = range(25)

Theirs = Callable[[SimpleNamespace, SimpleNamespace], Tensor]
"""Returns verl's advantages, (n_traj, width), from its functions and a padded batch."""


def of_groups(name: str, **options: Any) -> Theirs:
    """Return one of verl's estimators that compare the rewards of a group."""
    return lambda verl, batch: getattr(verl, name)(batch.rewards.clone(), batch.mask, batch.index, **options)[0]


def reinforce_plus_plus(verl: SimpleNamespace, batch: SimpleNamespace) -> Tensor:
    config = SimpleNamespace(gamma=0.9)
    result: Tensor = verl.compute_reinforce_plus_plus_outcome_advantage(batch.rewards, batch.mask, config)[0]
    return result


def gae(verl: SimpleNamespace, batch: SimpleNamespace) -> Tensor:
    result: Tensor = verl.compute_gae_advantage_return(batch.rewards, batch.values, batch.mask, 0.9, 0.8)[0]
    return result


def remax(verl: SimpleNamespace, batch: SimpleNamespace) -> Tensor:
    result: Tensor = verl.compute_remax_outcome_advantage(batch.rewards, batch.greedy, batch.mask)[0]
    return result


def reinforce(verl: SimpleNamespace, batch: SimpleNamespace) -> Tensor:
    """Return ReMax with a baseline of 0, because verl has no estimator without a baseline."""
    nothing = torch.zeros_like(batch.greedy)
    result: Tensor = verl.compute_remax_outcome_advantage(batch.rewards, nothing, batch.mask)[0]
    return result


def token_baseline(name: str) -> Theirs:
    return lambda verl, batch: getattr(verl, name)(
        batch.rewards, batch.mask, batch.index, batch.old_logprobs, batch.sum_pi_squared
    )[0]


def gdpo(verl: SimpleNamespace, batch: SimpleNamespace) -> Tensor:
    config = {"gdpo_reward_keys": ["correct", "format"], "gdpo_reward_weights": [1.0, 0.5]}
    # It reads only the width of the prompts, and the end of the response.
    whole = {"prompts": batch.mask[:, :1], "attention_mask": torch.cat((batch.mask[:, :1], batch.mask), 1).long()}
    result: Tensor = verl.compute_gdpo_outcome_advantage(
        batch.rewards, batch.mask, batch.index, config=config, non_tensor_batch=batch.components, batch=whole
    )[0]
    return result


PASSK = {"config": {"norm_adv_by_std_in_grpo": True}}
PASSK_PLAIN = {"config": {"norm_adv_by_std_in_grpo": False}}
ESTIMATORS: dict[str, tuple[str, dict[str, Any], Theirs]] = {
    "grpo": ("grpo", {"dialect": "verl"}, of_groups("compute_grpo_outcome_advantage")),
    "grpo_plain": (
        "grpo",
        {"dialect": "verl", "norm_adv_by_std_in_grpo": False},
        of_groups("compute_grpo_outcome_advantage", norm_adv_by_std_in_grpo=False),
    ),
    "dr_grpo": (
        "dr_grpo",
        {"dialect": "verl"},
        of_groups("compute_grpo_outcome_advantage", norm_adv_by_std_in_grpo=False),
    ),
    "rloo": ("rloo", {"dialect": "verl"}, of_groups("compute_rloo_outcome_advantage")),
    "reinforce_plus_plus_baseline": (
        "reinforce_plus_plus_baseline",
        {"dialect": "verl"},
        of_groups("compute_reinforce_plus_plus_baseline_outcome_advantage"),
    ),
    "reinforce": ("reinforce", {}, reinforce),
    "opo": ("opo", {}, of_groups("compute_opo_outcome_advantage")),
    "gpg": ("gpg", {"f_norm": 2.0}, of_groups("compute_gpg_outcome_advantage", f_norm=2.0)),
    "reinforce_plus_plus": ("reinforce_plus_plus", {"gamma": 0.9}, reinforce_plus_plus),
    "gae": ("gae", {"gamma": 0.9, "lam": 0.8}, gae),
    "remax": ("remax", {}, remax),
    "otb": ("otb", {}, token_baseline("compute_optimal_token_baseline_advantage")),
    "tir_otb": ("tir_otb", {}, token_baseline("compute_multi_turn_optimal_token_baseline_advantage")),
    "gdpo": ("gdpo", {"dialect": "verl", "weights": {"format": 0.5}}, gdpo),
    "grpo_passk": ("grpo_passk", {}, of_groups("compute_grpo_passk_outcome_advantage", **PASSK)),
    "grpo_passk_plain": (
        "grpo_passk",
        {"norm_adv_by_std_in_grpo": False},
        of_groups("compute_grpo_passk_outcome_advantage", **PASSK_PLAIN),
    ),
}


@pytest.mark.parametrize(("name", "options", "theirs"), ESTIMATORS.values(), ids=ESTIMATORS)
def test_ragged_groups_have_verls_advantages(verl: Any, name: str, options: Any, theirs: Theirs) -> None:
    for seed in SEEDS:
        # verl refuses groups of one for Pass@k, and always computes GDPO in float32.
        batch = draw_groups(seed, smallest_group=2 if name == "grpo_passk" else 1)
        ours = batch.ours(estimate(name, batch.inputs, **options))
        bound = {"rtol": 2e-4, "atol": 2e-5} if name == "gdpo" else {"rtol": 1e-6, "atol": 1e-6}
        np.testing.assert_allclose(ours, batch.theirs(theirs(verl, batch.padded)), **bound, err_msg=f"seed {seed}")


def test_targets_of_the_critic_are_verls(verl: Any) -> None:
    for seed in SEEDS:
        batch = draw_groups(seed)
        padded = batch.padded
        _, theirs = verl.compute_gae_advantage_return(padded.rewards, padded.values, padded.mask, 0.9, 0.8)
        ours = estimate("gae", batch.inputs, gamma=0.9, lam=0.8).returns[batch.inputs.loss_mask]
        np.testing.assert_allclose(ours, batch.theirs(theirs), rtol=1e-6, atol=1e-6, err_msg=f"seed {seed}")
