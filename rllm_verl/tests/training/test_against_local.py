"""The same batch, losses and weights give the same on verl's engine as on the local backend, to 1e-5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from local_models import build_tiny

from rllm_core.contracts.backend import KlTerm, RolloutCorrection, UpdatePlan
from rllm_core.data.batch import TokenBatch
from rllm_core.plugins.registry import Registry
from rllm_local.columns import ColumnFiller
from rllm_verl.columns import ColumnSettings, fill_columns
from rllm_verl.rows import MicroBatching

from .conftest import RAGGED, make_plan, make_updater, random_batch, update_locally

AGGREGATIONS = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
LOSSES = [registered.qualified_name for registered in Registry.load(allow={"rllm-core", "rllm-estimators"}).all("loss")]


@pytest.fixture
def check(one_rank: Any) -> Callable[..., dict[str, float]]:
    def compare(batch: TokenBatch, plan: UpdatePlan, **settings: Any) -> dict[str, float]:
        expected, weights = update_locally(batch, plan, **settings)
        metrics = make_updater(tokens=90, **settings).update(one_rank.restart(tokens=90), batch, plan).metrics
        assert metrics.keys() == expected.metrics.keys()
        for name, value in expected.metrics.items():
            assert metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-5), name
        assert float((one_rank.weights() - weights).abs().max()) < 1e-5
        return metrics

    return compare


@pytest.mark.long
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss(loss: str, check: Callable[..., dict[str, float]]) -> None:
    metrics = check(random_batch(RAGGED), make_plan(loss))
    assert metrics["actor/grad_norm"] > 1e-3


@pytest.mark.parametrize(
    ("loss", "aggregation"),
    [*(("ppo", each) for each in AGGREGATIONS), ("reinforce", "token-sum"), ("gspo", "seq-mean-token-mean")],
)
def test_every_aggregation(loss: str, aggregation: str, check: Callable[..., dict[str, float]]) -> None:
    check(random_batch(RAGGED), make_plan(loss, aggregation=aggregation))


def test_use_kl_loss_false_removes_the_divergence(one_rank: Any) -> None:
    batch, with_kl = random_batch(RAGGED), make_plan(kl=KlTerm(beta=0.5, estimator="k3"))
    without = make_updater(rows=1, use_kl_loss=False).update(one_rank.restart(rows=1), batch, with_kl).metrics
    assert without == make_updater(rows=1).update(one_rank.restart(rows=1), batch, make_plan()).metrics
    assert without != make_updater(rows=1).update(one_rank.restart(rows=1), batch, with_kl).metrics


def _correction(mode: Any, beyond_cap: Any) -> RolloutCorrection:
    return RolloutCorrection(mode=mode, cap=1.2, floor=0.7, beyond_cap=beyond_cap)


@pytest.mark.parametrize(
    "terms",
    [
        *({"kl": KlTerm(beta=0.5, estimator=estimator)} for estimator in ("k1", "k2", "k3")),
        {"entropy_coeff": 0.7},
        {"rollout_correction": _correction("token", "truncate")},
        {"rollout_correction": _correction("sequence", "mask")},
    ],
    ids=str,
)
def test_every_term(terms: dict[str, Any], check: Callable[..., dict[str, float]]) -> None:
    metrics = check(random_batch(RAGGED), make_plan("ppo", **terms))
    assert metrics.get("actor/kl_ref", 0) != 0 or "kl" not in terms
    assert 0 < metrics.get("actor/rollout_masked", 0) < 1 or "rollout_correction" not in terms


def test_role_losses_with_minibatches_epochs_and_temperature_agree(
    check: Callable[..., dict[str, float]],
) -> None:
    batch = random_batch(RAGGED, roles=("solver", "judge"), temperature=0.7)
    plan = make_plan({"solver": "gspo", "judge": "clip_cov"}, entropy_coeff=0.1, global_step=4)
    check(batch, plan, temperature=0.7, num_minibatches=3, num_epochs=2, lr_schedule="cosine", warmup_steps_ratio=0.2)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_columns(temperature: float, one_rank: Any) -> None:
    batch = random_batch(RAGGED)
    filler = ColumnFiller(
        build_tiny(0), temperature=temperature, max_tokens_per_microbatch=1000, recompute_old_logprobs=True
    )
    expected = batch.with_columns(**filler.columns(batch, frozenset({"sum_pi_squared"})))
    settings = ColumnSettings(
        temperature=temperature, recompute_old_logprobs=True, micro_batching=MicroBatching(max_tokens=90)
    )
    filled = fill_columns(one_rank.restart(tokens=90), batch, frozenset({"sum_pi_squared"}), settings)
    np.testing.assert_allclose(filled.old_logprobs, expected.old_logprobs, atol=1e-5)
    np.testing.assert_allclose(filled.sum_pi_squared, expected.sum_pi_squared, atol=1e-5)


def test_observations(check: Callable[..., dict[str, float]]) -> None:
    batch = random_batch(RAGGED)
    weights = np.zeros(len(batch.tokens), np.float32)
    for start, end in zip(batch.row_offsets, batch.row_offsets[1:], strict=False):
        first = start + int(batch.loss_mask[start:end].argmax())
        weights[first:end] = np.where(batch.loss_mask[first:end], 0, 0.5)
    metrics = check(batch.with_columns(observation_weights=weights), make_plan(), num_minibatches=2)
    assert metrics["actor/observation_loss"] > 0


def test_observations_without_weight_change_nothing(one_rank: Any) -> None:
    batch = random_batch(RAGGED)
    without = batch.with_columns(observation_weights=np.zeros(len(batch.tokens), np.float32))
    found = []
    for each in (batch, without):
        metrics = make_updater(tokens=90).update(one_rank.restart(tokens=90), each, make_plan()).metrics
        found.append((metrics, one_rank.weights()))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])
