"""Our estimators and losses and TRL's own code give the same numbers, and differ exactly where we say they do.

TRL computes advantages and losses inside methods of its trainers. These tests run the same statements and methods, with
an object that has the settings they read instead of the trainer.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rllm_backend_kit.loss import kl_term

from .conftest import draw_groups, draw_rows, estimate, one_token, token_losses

SEEDS = range(8)
CLOSE = {"rtol": 1e-6, "atol": 1e-8}
SUM = {"multi_objective_aggregation": "sum_then_normalize"}
PLAIN_RLOO = {"beta": 0.0, "reward_clip_range": None, "normalize_advantages": False}

ESTIMATORS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "grpo": ("grpo", {"dialect": "trl"}, "grpo_advantages", {**SUM, "scale_rewards": "group"}),
    "grpo_plain": (
        "grpo",
        {"dialect": "trl", "norm_adv_by_std_in_grpo": False},
        "grpo_advantages",
        {**SUM, "scale_rewards": "none"},
    ),
    "dr_grpo": ("dr_grpo", {"dialect": "trl"}, "grpo_advantages", {**SUM, "scale_rewards": "none"}),
    "rloo": ("rloo", {"dialect": "trl"}, "rloo_advantages", PLAIN_RLOO),
    "liteppo": ("liteppo", {}, "grpo_advantages", {**SUM, "scale_rewards": "batch"}),
}
"""Our name and options, TRL's advantages and settings."""


@pytest.mark.parametrize(("name", "options", "theirs", "settings"), ESTIMATORS.values(), ids=ESTIMATORS)
def test_ragged_groups_have_trls_advantages(trl: Any, name: str, options: Any, theirs: str, settings: Any) -> None:
    for seed in range(25):
        inputs = draw_groups(seed).inputs
        sizes = np.diff(inputs.group_offsets).tolist()
        # TRL's groups all have one size. So each is its own batch, or each batch has groups as large as the first.
        groups = torch.tensor(inputs.rewards)[:, None].split(sizes)
        if name == "liteppo":
            n = len(inputs.rewards) // sizes[0] * sizes[0]
            inputs = replace(inputs, rewards=inputs.rewards[:n], group_offsets=np.arange(0, n + 1, sizes[0]))
            groups, sizes = (torch.tensor(inputs.rewards)[:, None],), sizes[:1]
        advantages = estimate(name, inputs, **options)
        pairs = zip(groups, sizes, strict=True)
        expected = torch.cat([getattr(trl, theirs)(group, size, **settings) for group, size in pairs])
        np.testing.assert_allclose(advantages.values, expected.numpy(), rtol=1e-6, atol=1e-6, err_msg=f"seed {seed}")


def trainer(more: dict[str, Any] | None = None, **settings: Any) -> SimpleNamespace:
    """The trainer's attributes that TRL's `_compute_loss` reads: our settings, and defaults for the rest."""
    defaults = {
        "aux_loss_enabled": False,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "importance_sampling_level": "token",
        "beta": 0.0,
        "loss_type": "grpo",
        "epsilon_low": 0.2,
        "epsilon_high": 0.3,
        "use_vllm": False,
        "current_gradient_accumulation_steps": 1,
        "_entropy_bonus_enabled": False,
    }
    arguments = {
        "use_bias_correction_kl": False,
        "delta": None,
        "sapo_temperature_pos": 1.5,
        "sapo_temperature_neg": 2.5,
        "steps_per_generation": 1,
        "vespo_k_pos": 2.0,
        "vespo_lambda_pos": 3.0,
        "vespo_k_neg": 3.0,
        "vespo_lambda_neg": 2.0,
        **(more or {}),
    }
    one_process = SimpleNamespace(
        num_processes=1, reduce=lambda values, reduction: values, gather=lambda values: values
    )
    return SimpleNamespace(
        **(defaults | settings),
        args=SimpleNamespace(**arguments),
        model=SimpleNamespace(training=True),
        accelerator=one_process,
        _metrics={"train": defaultdict(list)},
    )


def theirs(loss: Any, batch: Any, gamma_weights: Any = None, **settings: Any) -> tuple[Tensor, Tensor]:
    """Return TRL's loss, and its gradient, (n_sampled,)."""
    padded = batch.padded
    tokens = torch.zeros_like(padded.mask, dtype=torch.long)
    inputs = {
        "prompt_ids": tokens[:, :1],
        "prompt_mask": tokens[:, :1],
        "completion_ids": tokens,
        "completion_mask": padded.mask,
        "advantages": padded.advantages[:, 0],
        "old_per_token_logps": padded.old,
        "ref_per_token_logps": padded.ref,
        "num_items_in_batch": padded.mask.sum(),
    }
    stub = trainer(max_completion_length=batch.longest, **settings)
    stub.get_gamma_weights = gamma_weights
    stub._get_per_token_logps_and_entropies = lambda *words, **more: (padded.new, torch.zeros_like(padded.mask), None)
    value = loss(stub, None, inputs)
    result: tuple[Tensor, Tensor] = batch.theirs(value)
    return result


CLIP = {"eps_clip": 0.2, "eps_clip_high": 0.3}
LOSSES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "grpo": ("ppo", CLIP, "seq-mean-token-mean", {}),
    "bnpo": ("ppo", CLIP, "token-mean", {"loss_type": "bnpo"}),
    "dapo": ("ppo", CLIP, "token-mean", {"loss_type": "dapo"}),
    "dr_grpo": ("ppo", CLIP, "seq-mean-token-sum-norm", {"loss_type": "dr_grpo"}),
    "sapo": ("sapo", {"tau_positive": 1.5, "tau_negative": 2.5}, "seq-mean-token-mean", {"loss_type": "sapo"}),
    "gspo": (
        "gspo",
        {"sequence_eps_clip": 0.2, "sequence_eps_clip_high": 0.3},
        "seq-mean-token-mean",
        {"importance_sampling_level": "sequence"},
    ),
    # TRL's `epsilon_high` is the largest weight itself, ours its distance from 1; TRL has no smallest.
    "cispo": (
        "cispo",
        {"eps_clip": 1.0, "eps_clip_high": 0.3},
        "token-mean",
        {"loss_type": "cispo", "epsilon_high": 1.3},
    ),
    # LUSPO is GSPO with token losses summed over each row.
    "luspo": (
        "gspo",
        {"sequence_eps_clip": 0.2, "sequence_eps_clip_high": 0.3},
        "seq-mean-token-sum",
        {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    ),
    # TRL's two-sided `delta` is our dual clip if it is above 1 + epsilon_high.
    "delta": ("ppo", {**CLIP, "clip_ratio_c": 1.5}, "token-mean", {"loss_type": "bnpo", "more": {"delta": 1.5}}),
    "vespo": ("vespo", {}, "token-mean", {"loss_type": "vespo"}),
}
"""TRL's name -> our name, options and aggregation, and TRL's settings."""


@pytest.mark.parametrize(("name", "options", "mode", "settings"), LOSSES.values(), ids=LOSSES)
def test_value_and_gradient_are_trls(trl: Any, name: str, options: Any, mode: str, settings: Any) -> None:
    for seed in SEEDS:
        batch = draw_rows(seed, advantage_per_row=True)
        losses = token_losses(name, batch.inputs, **options)
        expected = theirs(trl.grpo_loss, batch, trl.gamma_weights, **settings)
        assert_close(batch.ours(losses, mode), expected, **CLOSE)


def test_gmpo_is_trls(trl: Any) -> None:
    for seed in SEEDS:
        batch = draw_rows(seed, advantage_per_row=True)
        losses = token_losses("gmpo", batch.inputs, log_ratio_clip=0.2, log_ratio_clip_high=0.3)
        assert_close(batch.ours(losses, "seq-mean-token-mean"), theirs(trl.gmpo_loss, batch), **CLOSE)


def test_a2po_is_trls(trl: Any) -> None:
    for seed in SEEDS:
        batch = draw_rows(seed, advantage_per_row=True)
        padded = batch.padded
        sums = {name: (getattr(padded, name) * padded.mask).sum(1) for name in ("new", "ref")}
        stub = trainer(more={"beta2": 0.3})
        stub._get_sequence_logps = lambda *words, sums=sums: sums["new"]
        rewards = {"ref_logps": sums["ref"], "rewards": padded.advantages[:, 0], "v_star": torch.zeros(())}
        inputs = dict.fromkeys(("input_ids", "attention_mask", "logits_to_keep")) | rewards
        expected = batch.theirs(trl.a2po_loss(stub, stub.model, inputs))
        losses = token_losses("a2po", batch.inputs, beta=0.3)
        assert_close(batch.ours(losses, "seq-mean-token-sum"), expected, **CLOSE)


@pytest.mark.parametrize("estimator", ["k3", "k3_unbiased"])
def test_the_divergence_term_is_trls(trl: Any, estimator: Literal["k3", "k3_unbiased"]) -> None:
    unbiased = estimator == "k3_unbiased"
    for seed in SEEDS:
        batch = draw_rows(seed, advantage_per_row=True)
        divergence = kl_term(batch.inputs, estimator)
        losses = token_losses("ppo", batch.inputs, **CLIP) + 0.5 * divergence
        expected = theirs(trl.grpo_loss, batch, beta=0.5, more={"use_bias_correction_kl": unbiased})
        assert_close(batch.ours(losses, "seq-mean-token-mean"), expected, **CLOSE)


# The following differences are intended. Each gives its reason.


def test_trl_default_cispo_weight_is_a_fifth(trl: Any) -> None:
    # TRL takes the default of `epsilon`, which is a distance from 1, for the largest weight.
    batch = one_token(0.0, 1.0)
    default = theirs(trl.grpo_loss, batch, loss_type="cispo", epsilon_high=0.2)
    assert batch.ours(token_losses("cispo", batch.inputs), "token-mean")[1] == pytest.approx(5 * default[1])


def test_ratios_are_bounded_here_and_unbounded_in_trl(trl: Any) -> None:
    # One broken log-prob must not make the whole update infinite.
    batch = one_token(800.0, -1.0)
    assert theirs(trl.grpo_loss, batch)[0].isinf()
    assert token_losses("ppo", batch.inputs, **CLIP).item() == pytest.approx(np.exp(20.0))


def test_empty_rows_count_only_in_means_of_trl(trl: Any) -> None:
    # Counted, they would make the step smaller the more rows a filter has emptied.
    batch = one_token(0.0, 1.0).with_a_row_of_nothing()
    assert theirs(trl.grpo_loss, batch)[0].item() == pytest.approx(-0.5)
    losses = token_losses("ppo", batch.inputs, **CLIP)
    assert batch.ours(losses, "seq-mean-token-mean")[0].item() == pytest.approx(-1.0)
