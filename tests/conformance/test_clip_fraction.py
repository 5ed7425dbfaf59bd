"""The share of clipped tokens: verl's own metric for each loss that clips, and differences from ours."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from rllm_core import builtin
from rllm_core.contracts.loss import LossInput
from rllm_estimators.plugin import rllm_losses

from .conftest import draw_rows, one_token

SEEDS = range(8)
CLIP = {"eps_clip": 0.2, "eps_clip_high": 0.3}
VERL_CLIP = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.3, "clip_ratio_c": 1e9}
NEAR = {"max_divergence": 0.05, "max_divergence_high": 0.1, "clip_ratio_c": 1.5}
VERL_NEAR = {"clip_ratio": 0.05, "clip_ratio_low": 0.05, "clip_ratio_high": 0.1, "clip_ratio_c": 1.5}
CASES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "ppo": ("ppo", CLIP, "vanilla", VERL_CLIP),
    "ppo_dual_clip": ("ppo", {**CLIP, "clip_ratio_c": 1.5}, "vanilla", {**VERL_CLIP, "clip_ratio_c": 1.5}),
    "cispo": ("cispo", CLIP, "cispo", VERL_CLIP),
    "gspo": ("gspo", {"sequence_eps_clip": 0.2, "sequence_eps_clip_high": 0.3}, "gspo", VERL_CLIP),
    "dppo_tv": ("dppo_tv", NEAR, "dppo_tv", VERL_NEAR),
    "dppo_kl": ("dppo_kl", NEAR, "dppo_kl", VERL_NEAR),
}
"""Our name and options, verl's name and settings."""


@pytest.fixture(scope="module")
def clipped() -> Callable[..., Tensor]:
    """Return the tokens that a loss clips, by its name, with these options."""
    records = {record.name: record for record in (*builtin.rllm_losses(), *rllm_losses())}

    def call(name: str, inputs: LossInput, **options: Any) -> Tensor:
        load = records[name].load_clipped
        assert load is not None
        return load()(inputs, records[name].params(**options))

    return call


def theirs(verl: Any, name: str, batch: Any, settings: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of verl's loss."""
    from peers import ActorSettings

    padded = batch.padded
    columns = padded.old, padded.new, padded.advantages, padded.mask
    _, metrics = getattr(verl, f"compute_policy_loss_{name}")(
        *columns, "token-mean", ActorSettings(global_batch_info={}, **settings)
    )
    return dict(metrics)


@pytest.mark.parametrize(("name", "options", "verl_name", "settings"), CASES.values(), ids=CASES)
def test_the_share_of_clipped_tokens_is_verls(
    verl: Any, clipped: Any, name: str, options: Any, verl_name: str, settings: Any
) -> None:
    shares = []
    for seed in SEEDS:
        batch = draw_rows(seed)
        metrics = theirs(verl, verl_name, batch, settings)
        shares.append(clipped(name, batch.inputs, **options).float().mean().item())
        expected = metrics["actor/pg_clipfrac"] + metrics["actor/pg_clipfrac_lower"]
        assert shares[-1] == pytest.approx(expected, abs=1e-6)
    assert 0 < max(shares) < 1


def test_gmpo_counts_the_side_that_it_cuts_here_and_both_sides_in_verl(verl: Any, clipped: Any) -> None:
    # A token that is already far less likely keeps its ratio where A > 0: nothing of it is cut.
    batch = one_token(-1.0, 1.0)
    options = {"log_ratio_clip": 0.2, "log_ratio_clip_high": 0.3}
    assert theirs(verl, "geo_mean", batch, VERL_CLIP)["actor/pg_clipfrac"] == pytest.approx(1.0)
    assert clipped("gmpo", batch.inputs, **options).tolist() == [False]
    assert clipped("gmpo", one_token(-1.0, -1.0).inputs, **options).tolist() == [True]
    assert clipped("gmpo", one_token(1.0, 1.0).inputs, **options).tolist() == [True]


def test_clip_cov_counts_what_it_clips_and_what_it_cuts_here_and_only_the_cut_in_verl(verl: Any, clipped: Any) -> None:
    batch = one_token(1.0, 1.0)
    settings = SimpleNamespace(clip_cov_ratio=1.0, clip_cov_lb=1.0, clip_cov_ub=5.0)
    assert theirs(verl, "clip_cov", batch, {**VERL_CLIP, "policy_loss": settings})["actor/pg_clipfrac"] == 0.0
    assert clipped("clip_cov", batch.inputs, **CLIP).tolist() == [True]
