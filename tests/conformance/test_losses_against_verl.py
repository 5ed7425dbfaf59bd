"""Our losses, aggregated, and verl's own functions: the same value and the same gradient, and where they differ."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rllm_backend_kit.loss import kl_divergence, value_loss
from rllm_core import builtin
from rllm_core.updates.aggregation import token_weights
from rllm_estimators.plugin import rllm_losses

from .conftest import draw_rows, one_token, token_losses

SEEDS = range(8)
WIDTH = 16
CLOSE = {"rtol": 1e-6, "atol": 1e-8}
MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
FAR = 1e9
"""A bound that no ratio reaches."""

CLIP = {"eps_clip": 0.2, "eps_clip_high": 0.3}
VERL_CLIP = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.3}
SEQUENCE_CLIP = {"sequence_eps_clip": 0.2, "sequence_eps_clip_high": 0.3}
LOG_CLIP = {"log_ratio_clip": 0.2, "log_ratio_clip_high": 0.3}
NEAR = {"max_divergence": 0.05, "max_divergence_high": 0.1, "clip_ratio_c": 1.5}
VERL_NEAR = {"clip_ratio": 0.05, "clip_ratio_low": 0.05, "clip_ratio_high": 0.1, "clip_ratio_c": 1.5}
LOSSES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "ppo": ("ppo", CLIP, "vanilla", {**VERL_CLIP, "clip_ratio_c": FAR}),
    "ppo_dual_clip": ("ppo", {**CLIP, "clip_ratio_c": 1.5}, "vanilla", {**VERL_CLIP, "clip_ratio_c": 1.5}),
    "importance_sampling": (
        "importance_sampling",
        {},
        "vanilla",
        {"clip_ratio": FAR, "clip_ratio_low": FAR, "clip_ratio_high": FAR, "clip_ratio_c": FAR},
    ),
    "reinforce": ("reinforce", {}, "gpg", {}),
    "cispo": ("cispo", CLIP, "cispo", VERL_CLIP),
    "gspo": ("gspo", SEQUENCE_CLIP, "gspo", VERL_CLIP),
    "dppo_tv": ("dppo_tv", NEAR, "dppo_tv", VERL_NEAR),
    "dppo_kl": ("dppo_kl", NEAR, "dppo_kl", VERL_NEAR),
    "dro": ("dro", {"beta": 0.3}, "dro", {"policy_loss": SimpleNamespace(dro_beta=0.3)}),
}
"""Our name and options, verl's name and settings."""
RECORDS = {record.name: record for record in (*builtin.rllm_losses(), *rllm_losses())}
ROWS = ("seq-mean-token-mean", "token-mean")
KL_COV = {"kl_cov_ratio": 0.125, "ppo_kl_coef": 0.7}
COV = {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.1, "clip_cov_ub": 0.9}
"""Losses that verl averages over tokens, then over sequences, in every mode."""


def call(verl: Any, name: str, batch: Any, mode: str, settings: dict[str, Any]) -> tuple[Tensor, dict[str, float]]:
    """Return verl's loss and its metrics."""
    from peers import ActorSettings

    padded = batch.padded
    info = {"loss_scale_factor": batch.longest} if mode == "seq-mean-token-sum-norm" else {}
    result: tuple[Tensor, dict[str, float]] = getattr(verl, f"compute_policy_loss_{name}")(
        padded.old, padded.new, padded.advantages, padded.mask, mode, ActorSettings(global_batch_info=info, **settings)
    )
    return result


def clipped(name: str, inputs: Any, **options: Any) -> Tensor:
    """Return the tokens that a loss clips."""
    load = RECORDS[name].load_clipped
    assert load is not None
    return load()(inputs, RECORDS[name].params(**options))


def centered_row(seed: int) -> Any:
    """A row whose advantages have mean 0: there the covariance of our row is that of verl's batch.

    Long enough for one to be positive, as we choose no other.
    """
    batch = draw_rows(seed, n_rows=1, shortest=4)
    mask = batch.padded.mask.bool()
    mean = batch.inputs.advantages.mean()
    batch.inputs.advantages.sub_(mean)
    batch.padded.advantages[mask] -= mean
    return batch


CASES = [
    *((*case, mode, mode) for case in LOSSES.values() for mode in MODES),
    # verl averages these over tokens, then over sequences, in every mode.
    ("sapo", {"tau_positive": 1.5, "tau_negative": 2.5}, "sapo", {"tau_pos": 1.5, "tau_neg": 2.5}, *ROWS),
    ("gmpo", LOG_CLIP, "geo_mean", VERL_CLIP, *ROWS),
    ("kl_cov", KL_COV, "kl_cov", {"policy_loss": SimpleNamespace(**KL_COV)}, "token-mean", "token-mean"),
    ("clip_cov", {**COV, **CLIP}, "clip_cov", {**VERL_CLIP, "policy_loss": SimpleNamespace(**COV)}, *ROWS[1:] * 2),
]


@pytest.mark.parametrize(("name", "options", "verl_name", "settings", "mode", "verl_mode"), CASES)
def test_value_and_gradient_are_verls(
    verl: Any, name: str, options: Any, verl_name: str, settings: Any, mode: str, verl_mode: str
) -> None:
    for seed in SEEDS:
        batch = centered_row(seed) if name.endswith("cov") else draw_rows(seed, advantage_per_row=mode != verl_mode)
        loss, _ = call(verl, verl_name, batch, verl_mode, settings)
        ours = batch.ours(token_losses(name, batch.inputs, **options), mode)
        assert_close(ours, batch.theirs(loss), **CLOSE)


@pytest.mark.parametrize("case", ["ppo", "ppo_dual_clip", "cispo", "gspo", "dppo_tv", "dppo_kl"])
def test_the_share_of_clipped_tokens_is_verls(verl: Any, case: str) -> None:
    name, options, verl_name, settings = LOSSES[case]
    shares = []
    for seed in SEEDS:
        batch = draw_rows(seed)
        _, metrics = call(verl, verl_name, batch, "token-mean", settings)
        shares.append(clipped(name, batch.inputs, **options).float().mean().item())
        expected = metrics["actor/pg_clipfrac"] + metrics["actor/pg_clipfrac_lower"]
        assert shares[-1] == pytest.approx(expected, abs=1e-6)
    assert 0 < max(shares) < 1


@pytest.mark.parametrize("mode", MODES)
def test_aggregation_is_verls_also_with_rows_of_nothing(verl: Any, mode: str) -> None:
    random = np.random.default_rng(0)
    for _ in SEEDS:
        lengths = random.integers(0, 9, 6)
        mask = np.arange(WIDTH) < lengths[:, None]
        losses = random.normal(size=mask.shape)
        scale = {"loss_scale_factor": WIDTH} if mode == "seq-mean-token-sum-norm" else {}
        expected = verl.agg_loss(torch.tensor(losses), torch.tensor(mask, dtype=torch.float64), mode, **scale)
        weighted = (losses[mask] * token_weights(mode, lengths, WIDTH)).sum()
        assert weighted == pytest.approx(float(expected), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_divergence_and_its_gradient_are_verls(verl: Any, estimator: Literal["k1", "k2", "k3"]) -> None:
    for seed in SEEDS:
        batch = draw_rows(seed)
        divergence = kl_divergence(batch.inputs.logprobs, batch.inputs.ref_logprobs, estimator)
        expected = verl.kl_penalty(batch.padded.new, batch.padded.ref, estimator)[batch.padded.mask.bool()]
        assert_close(divergence, expected)
        (gradient,) = torch.autograd.grad(divergence.sum(), batch.inputs.logprobs)
        (padded,) = torch.autograd.grad(expected.sum(), batch.padded.new)
        assert_close(gradient, padded[batch.padded.mask.bool()])


@pytest.mark.parametrize("clip", [0.2, FAR])
def test_value_loss_is_verls(verl: Any, clip: float) -> None:
    for seed in SEEDS:
        padded = draw_rows(seed).padded
        mask = padded.mask.bool()
        expected, _ = verl.compute_value_loss(padded.new, padded.advantages, padded.old, padded.mask, clip)
        losses = value_loss(padded.new[mask], padded.advantages[mask], padded.old[mask], None if clip == FAR else clip)
        assert_close(losses.mean(), expected, rtol=1e-6, atol=1e-8)


# The following differences are intended. Each gives its reason.


def test_gspo_ratio_bound_is_larger_than_in_verl(verl: Any) -> None:
    batch = one_token(15.0, -1.0)
    loss, _ = call(verl, "gspo", batch, "token-mean", VERL_CLIP)
    assert loss.item() == pytest.approx(np.exp(10.0))
    assert token_losses("gspo", batch.inputs, **SEQUENCE_CLIP).item() == pytest.approx(np.exp(15.0))


def test_kl_cov_chooses_by_row_unlike_in_verl(verl: Any) -> None:
    # If tokens were chosen over the micro-batch, a different cut would give the same tokens a different gradient.
    batch = draw_rows(3, n_rows=4)
    settings = {"policy_loss": SimpleNamespace(kl_cov_ratio=0.25, ppo_kl_coef=1.0)}
    _, theirs_gradient = batch.theirs(call(verl, "kl_cov", batch, "token-mean", settings)[0])
    losses = token_losses("kl_cov", batch.inputs, kl_cov_ratio=0.25, ppo_kl_coef=1.0)
    assert not torch.allclose(batch.ours(losses, "token-mean")[1], theirs_gradient)


def test_gmpo_counts_only_its_cut_side_unlike_verl(verl: Any) -> None:
    # A token that is already far less likely keeps its ratio where A > 0: nothing of it is cut.
    _, metrics = call(verl, "geo_mean", one_token(-1.0, 1.0), "token-mean", VERL_CLIP)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(1.0)
    for log_ratio, advantage, expected in ((-1.0, 1.0, False), (-1.0, -1.0, True), (1.0, 1.0, True)):
        assert clipped("gmpo", one_token(log_ratio, advantage).inputs, **LOG_CLIP).tolist() == [expected]


def test_clip_cov_counts_clipped_tokens_unlike_in_verl(verl: Any) -> None:
    batch = one_token(1.0, 1.0)
    settings = SimpleNamespace(clip_cov_ratio=1.0, clip_cov_lb=1.0, clip_cov_ub=5.0)
    _, metrics = call(verl, "clip_cov", batch, "token-mean", {**VERL_CLIP, "policy_loss": settings})
    assert metrics["actor/pg_clipfrac"] == 0.0
    assert clipped("clip_cov", batch.inputs, **CLIP).tolist() == [True]
