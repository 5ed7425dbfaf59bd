"""Which tokens kl_cov and clip_cov choose."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from rllm_core.contracts.loss import LossInput
from rllm_estimators.losses_covariance import clip_cov, kl_cov
from rllm_estimators.options import ClipCovParams, KlCovParams


def rows(lengths: list[int], advantages: list[float], seed: int = 0) -> LossInput:
    """Rows whose log-probs have all moved up by 0.1."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor(lengths)
    logprobs = -3 * torch.rand(sum(lengths), generator=generator) - 0.1
    return LossInput(
        logprobs=logprobs,
        old_logprobs=logprobs - 0.1,
        advantages=torch.repeat_interleave(torch.tensor(advantages), counts),
        row_ids=torch.repeat_interleave(torch.arange(len(lengths)), counts),
        seed=seed,
    )


def penalised(inputs: LossInput, share: float) -> Tensor:
    plain, other = (kl_cov(inputs, KlCovParams(kl_cov_ratio=share, ppo_kl_coef=c)) for c in (0.0, 1.0))
    torch.testing.assert_close((other - plain)[other != plain], torch.full_like(plain, 0.1)[other != plain])
    return other != plain


def cut(inputs: LossInput, share: float, **bounds: Any) -> Tensor:
    return clip_cov(inputs, ClipCovParams(clip_cov_ratio=share, **bounds)) == 0


def test_kl_cov_penalizes_likely_good_unlikely_bad_tokens() -> None:
    inputs = rows([10, 10], [1.0, -1.0])
    chosen = penalised(inputs, 0.2)
    good, bad = inputs.logprobs[:10], inputs.logprobs[10:]
    assert sorted(good[chosen[:10]].tolist()) == sorted(good.tolist())[-2:]
    assert sorted(bad[chosen[10:]].tolist()) == sorted(bad.tolist())[:2]


def test_kl_cov_skips_tokens_that_keep_entropy() -> None:
    inputs = rows([10, 10, 10], [1.0, 0.0, 1.0])
    flat = torch.where(inputs.row_ids == 2, -1.0, inputs.logprobs)
    chosen = penalised(replace(inputs, logprobs=flat, old_logprobs=flat - 0.1), 1.0)
    assert torch.equal(chosen[:10], flat[:10] > flat[:10].mean())
    assert not chosen[10:].any()


@pytest.mark.parametrize("choose", [penalised, cut])
def test_share_is_right_on_average_for_short_rows(choose: Any) -> None:
    bounds = {"clip_cov_lb": 0.0, "clip_cov_ub": 9.0} if choose is cut else {}
    inputs = rows([7] * 3000, [1.0] * 3000)
    expected = 0.02 * 7 * 3000
    assert int(choose(inputs, 0.02, **bounds).sum()) == pytest.approx(expected, abs=5 * math.sqrt(expected))
    # With the paper's share most rows choose nothing, and a row of 7 never chooses two.
    per_row = torch.bincount(inputs.row_ids[choose(inputs, 2e-4, **bounds)], minlength=3000)
    assert per_row.max() <= 1
    assert 0 <= per_row.sum() <= 20


def test_whole_shares_are_exact() -> None:
    inputs = rows([8, 4], [1.0, 1.0])
    assert torch.bincount(inputs.row_ids[penalised(inputs, 0.25)]).tolist() == [2, 1]


def test_clip_cov_draws_evenly_within_the_bounds() -> None:
    inputs = rows([12], [2.0])
    covariance = 2 * (inputs.logprobs - inputs.logprobs.mean())
    bounds = {"clip_cov_lb": 0.3, "clip_cov_ub": 1.9}
    within = (covariance > 0.3) & (covariance < 1.9)
    assert 2 < within.sum() < (covariance > 0.3).sum()
    counts = sum(cut(replace(inputs, seed=seed), 1 / 12, **bounds).long() for seed in range(600))
    assert torch.equal(counts > 0, within)
    fair = 600 / int(within.sum())
    assert (counts[within] - fair).abs().max() < 5 * math.sqrt(fair)


def test_clip_cov_cuts_no_clipped_token() -> None:
    inputs = rows([12], [2.0])
    far = replace(inputs, old_logprobs=inputs.logprobs - 0.5)
    assert not cut(far, 1.0, clip_cov_lb=0.0, clip_cov_ub=9.0).any()


def test_choice_depends_on_seed_and_row() -> None:
    bounds = {"clip_cov_lb": 0.0, "clip_cov_ub": 9.0}
    inputs = rows([40], [1.0])
    first = cut(inputs, 0.2, **bounds)
    assert torch.equal(first, cut(inputs, 0.2, **bounds))
    assert not torch.equal(first, cut(replace(inputs, seed=1), 0.2, **bounds))
    assert not torch.equal(first, cut(replace(inputs, row_ids=inputs.row_ids + 1), 0.2, **bounds))


def test_reversed_bounds_are_rejected() -> None:
    with pytest.raises(ValidationError, match="clip_cov_lb must be below clip_cov_ub"):
        ClipCovParams(clip_cov_lb=5.0)
