"""Log-probs of -inf, of tokens a policy calls impossible: two of them have the log-ratio 0, and nothing is NaN."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import numpy as np
import pytest
import torch

from rllm_backend_kit.loss import LossTerms, kl_divergence, rollout_weights
from rllm_backend_kit.update_metrics import Means, note_policy, note_rollout
from rllm_core import builtin
from rllm_core.algorithms.estimation import estimate
from rllm_core.contracts.backend import RolloutCorrection
from rllm_core.contracts.loss import LossInput
from rllm_core.errors import LossError
from rllm_core.updates.losses import check_token_losses
from rllm_estimators.plugin import rllm_losses

from .every_estimator import batch_of, of_rewards, with_options

INF = math.inf
LOSSES = {record.name: record for record in (*builtin.rllm_losses(), *rllm_losses())}
UNBOUNDED = {"dro", "ipo", "kl_cov"}
"""Losses whose penalty grows with the log-ratio without a bound."""
FOLLOW_LOGPROB = {"reinforce", "cispo", "dppo_tv", "dppo_kl", "dro", "reinforce_kl", "topr", "vespo"}
"""Losses with the log-prob itself as a factor."""
CAP, FLOOR = 2.0, 0.25


def weights(old: list[float], sampled: list[float], rows: list[int], **changes: Any) -> list[float]:
    correction = replace(RolloutCorrection(mode="token", cap=CAP, floor=FLOOR, beyond_cap="truncate"), **changes)
    found: list[float] = rollout_weights(
        torch.tensor(old), torch.tensor(sampled), torch.tensor(rows), correction
    ).tolist()
    return found


def test_the_weight_of_an_impossible_token() -> None:
    assert weights([-INF, -INF, -1.0, -1.0], [-INF, -1.0, -INF, -1.0], [0, 0, 0, 0]) == [1.0, 0.0, CAP, 1.0]
    assert weights([-1.0], [-INF], [0], beyond_cap="mask") == [0.0]


def test_the_weight_of_a_row_with_impossible_tokens() -> None:
    rows = [0, 0, 1, 1, 2, 2, 3, 3]
    old = [-INF, -1.0, -INF, -1.0, -1.0, -1.0, -INF, -1.0]
    sampled = [-INF, -1.5, -1.0, -1.0, -INF, -1.0, -1.0, -INF]
    found = weights(old, sampled, rows, mode="sequence")
    assert found == pytest.approx([math.exp(0.5)] * 2 + [0.0] * 2 + [CAP] * 2 + [0.0] * 2)


@pytest.mark.parametrize("mode", ["token", "sequence"])
@pytest.mark.parametrize("beyond", ["truncate", "mask"])
def test_impossible_tokens_have_finite_bounded_weights(mode: str, beyond: str) -> None:
    extremes = [-INF, -1e30, -1e4, -90.0, -1.0, 0.0]
    pairs = list(product(extremes, extremes, extremes, extremes))
    old = [value for first, second, _, _ in pairs for value in (first, second)]
    sampled = [value for _, _, third, fourth in pairs for value in (third, fourth)]
    found = weights(old, sampled, np.repeat(np.arange(len(pairs)), 2).tolist(), mode=mode, beyond_cap=beyond)
    assert all(0.0 <= weight <= CAP for weight in found)


def test_a_weight_of_no_number_is_no_number() -> None:
    for mode in ("token", "sequence"):
        assert all(math.isnan(weight) for weight in weights([math.nan], [-1.0], [0], mode=mode))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_divergence_at_an_impossible_token(estimator: Literal["k1", "k2", "k3"]) -> None:
    logprobs = torch.tensor([-INF, -1.0], requires_grad=True)
    found = kl_divergence(logprobs, torch.tensor([-INF, -1.0]), estimator)
    assert found.tolist() == [0.0, 0.0]
    (gradient,) = torch.autograd.grad(found.sum(), logprobs)
    assert gradient.isfinite().all()
    values = kl_divergence(torch.tensor([-1.0, -INF]), torch.tensor([-INF, -1.0]), estimator)
    assert values.tolist() == [INF, -INF if estimator == "k1" else INF]


def some(logprob: float, old: float, advantage: float) -> LossInput:
    """Two rows; the first has a token in its middle with these log-probs."""
    return LossInput(
        logprobs=torch.tensor([-0.5, logprob, -2.0, -1.0, -0.3], requires_grad=True),
        old_logprobs=torch.tensor([-0.7, old, -1.9, -1.2, -0.3]),
        ref_logprobs=torch.tensor([-0.7, old, -1.9, -1.2, -0.3]),
        advantages=torch.tensor([advantage, advantage, advantage, 1.0, 1.0]),
        row_ids=torch.tensor([3, 3, 3, 4, 4]),
    )


@pytest.mark.long
@pytest.mark.parametrize("advantage", [1.5, -1.5, 0.0])
@pytest.mark.parametrize("name", LOSSES)
def test_loss_of_token_impossible_for_old_policy(name: str, advantage: float) -> None:
    inputs = some(-1.0, -INF, advantage)
    losses = LOSSES[name].load()(inputs, LOSSES[name].params())
    assert not losses.isnan().any()
    assert losses[3:].isfinite().all(), "a separate row"
    if losses.isfinite().all():
        (gradient,) = torch.autograd.grad(losses.sum(), inputs.logprobs)
        assert gradient.isfinite().all()
    else:
        assert name in UNBOUNDED
        with pytest.raises(LossError, match="NaN or infinite"):
            check_token_losses(losses, inputs, name)


@pytest.mark.parametrize("advantage", [1.5, -1.5, 0.0])
@pytest.mark.parametrize("name", sorted(set(LOSSES) - FOLLOW_LOGPROB))
@pytest.mark.parametrize("old", [-INF, -1.0])
def test_ratio_loss_of_token_impossible_for_policy(name: str, advantage: float, old: float) -> None:
    inputs = some(-INF, old, advantage)
    losses = LOSSES[name].load()(inputs, LOSSES[name].params())
    assert not losses.isnan().any()
    if old == -1.0 and name in UNBOUNDED:
        return
    assert losses.isfinite().all()
    (gradient,) = torch.autograd.grad(losses.sum(), inputs.logprobs)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", sorted(set(LOSSES) - FOLLOW_LOGPROB - {"kl_cov", "clip_cov"}))
def test_token_impossible_for_both_counts_as_unchanged(name: str) -> None:
    impossible, unchanged = some(-INF, -INF, 1.5), some(-1.0, -1.0, 1.5)
    found, expected = (LOSSES[name].load()(inputs, LOSSES[name].params()) for inputs in (impossible, unchanged))
    torch.testing.assert_close(found, expected)


def test_dppo_follows_impossible_token_only_while_unlikely() -> None:
    """KL(q, p) with q = 0 is -log(1 - p), for any value of 0 log 0."""
    record = LOSSES["dppo_kl"]
    limit = record.params().max_divergence_high or record.params().max_divergence
    for probability, followed in ((1 - math.exp(-limit / 2), True), (1 - math.exp(-limit * 2), False)):
        inputs = some(math.log(probability), -INF, 1.0)
        assert bool(record.load()(inputs, record.params())[1] != 0) is followed


def test_metrics_of_an_update_with_impossible_tokens() -> None:
    means = Means()
    inputs = replace(some(-INF, -INF, 1.0), sampling_logprobs=torch.tensor([-0.7, -INF, -1.9, -1.2, -0.3]))
    note_policy(means, inputs, LossTerms(divergence=None, weights=None), torch.zeros(5))
    note_rollout(means, inputs)
    assert all(math.isfinite(value) for value in means.metrics().values())
    assert means.metrics()["actor/rollout_logprob_difference"] == pytest.approx(0.5 / 5)


@pytest.mark.parametrize("mode", ["token", "sequence"])
@pytest.mark.parametrize("name", ["otb", "tir_otb"])
def test_an_optimal_baseline_with_impossible_tokens(name: str, mode: str) -> None:
    batch = batch_of(of_rewards([[1.0, 0.0, 0.5]], said=3))
    old, sampling = batch.old_logprobs.copy(), batch.sampling_logprobs.copy()
    first, second, third = np.flatnonzero(batch.loss_mask)[:3]
    old[[first, second]], sampling[[first, third]] = -INF, -INF
    batch = batch.with_columns(old_logprobs=old, sampling_logprobs=sampling)
    estimator = with_options(name, tis_mode=mode)
    assert np.isfinite(estimate(batch, lambda role: estimator).advantages).all()
