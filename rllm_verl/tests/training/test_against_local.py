"""The same batch, losses and weights give the same on verl's engine as on the local backend, to 1e-5."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from local_models import build_tiny

from rllm_core.contracts.backend import KlTerm, RolloutCorrection, UpdatePlan
from rllm_core.data.batch import TokenBatch
from rllm_core.plugins.registry import Registry
from rllm_local.columns import ColumnFiller
from rllm_local.settings import TrainingSection
from rllm_local.update import Updater as LocalUpdater
from rllm_verl.columns import ColumnSettings, fill_columns
from rllm_verl.rows import MicroBatching

from .conftest import make_plan, make_updater, random_batch

AGGREGATIONS = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
LOSSES = [registered.qualified_name for registered in Registry.load(allow={"rllm-core", "rllm-estimators"}).all("loss")]
TURNS = [[(5, 3), (2, 4)], [(1, 1)], [(30, 12), (1, 1), (4, 6)], [(3, 0), (2, 5)], [(8, 25)], [(2, 2)], [(7, 9)]]


@pytest.fixture
def local() -> Callable[..., tuple[dict[str, float], torch.Tensor]]:
    """Metrics and weights after an update on the local backend."""

    def update(
        batch: TokenBatch, plan: UpdatePlan, *, temperature: float = 1.0, **settings: Any
    ) -> tuple[dict[str, float], torch.Tensor]:
        model = build_tiny(0)
        section = TrainingSection(
            learning_rate=1e-3, beta1=0.9, beta2=0.95, eps=1e-4, max_grad_norm=1.0, weight_decay=0.0, **settings
        )
        updater = LocalUpdater(model, section, total_steps=10, temperature=temperature, max_response_length=50)
        metrics = updater.update(batch, plan).metrics
        return metrics, torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    return update


@pytest.fixture
def check(
    one_rank: Any, local: Callable[..., tuple[dict[str, float], torch.Tensor]]
) -> Callable[..., dict[str, float]]:
    def compare(batch: TokenBatch, plan: UpdatePlan, **settings: Any) -> dict[str, float]:
        expected, weights = local(batch, plan, **settings)
        metrics = make_updater(tokens=90, **settings).update(one_rank.restart(tokens=90), batch, plan).metrics
        _same_metrics(metrics, expected)
        difference = float((one_rank.weights() - weights).abs().max())
        assert difference < 1e-5
        return metrics

    return compare


def _same_metrics(metrics: Mapping[str, float], expected: Mapping[str, float]) -> None:
    assert metrics.keys() == expected.keys()
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-5), name


@pytest.mark.long
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss(loss: str, check: Callable[..., dict[str, float]]) -> None:
    metrics = check(random_batch(TURNS), make_plan(loss))
    assert metrics["actor/grad_norm"] > 1e-3


@pytest.mark.parametrize(
    ("loss", "aggregation"),
    [*(("ppo", each) for each in AGGREGATIONS), ("reinforce", "token-sum"), ("gspo", "seq-mean-token-mean")],
)
def test_every_aggregation(loss: str, aggregation: str, check: Callable[..., dict[str, float]]) -> None:
    check(random_batch(TURNS), make_plan(loss, aggregation=aggregation))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_divergence_from_the_reference_model(estimator: Any, check: Callable[..., dict[str, float]]) -> None:
    metrics = check(random_batch(TURNS), make_plan("ppo", kl=KlTerm(beta=0.5, estimator=estimator)))
    assert metrics["actor/kl_ref"] != 0


def test_use_kl_loss_false_removes_the_divergence(one_rank: Any) -> None:
    batch, with_kl = random_batch(TURNS), make_plan(kl=KlTerm(beta=0.5, estimator="k3"))
    without = make_updater(rows=1, use_kl_loss=False).update(one_rank.restart(rows=1), batch, with_kl).metrics
    assert without == make_updater(rows=1).update(one_rank.restart(rows=1), batch, make_plan()).metrics
    assert without != make_updater(rows=1).update(one_rank.restart(rows=1), batch, with_kl).metrics


def test_the_entropy_bonus(check: Callable[..., dict[str, float]]) -> None:
    check(random_batch(TURNS), make_plan("ppo", entropy_coeff=0.7))


@pytest.mark.parametrize(("mode", "beyond_cap"), [("token", "truncate"), ("sequence", "mask")])
def test_rollout_correction(mode: Any, beyond_cap: Any, check: Callable[..., dict[str, float]]) -> None:
    correction = RolloutCorrection(mode=mode, cap=1.2, floor=0.7, beyond_cap=beyond_cap)
    metrics = check(random_batch(TURNS), make_plan("ppo", rollout_correction=correction))
    assert 0 < metrics["actor/rollout_masked"] < 1


def test_a_loss_for_each_role_with_several_minibatches_and_epochs_at_another_temperature(
    check: Callable[..., dict[str, float]],
) -> None:
    batch = random_batch(TURNS, roles=("solver", "judge"), temperature=0.7)
    plan = make_plan({"solver": "gspo", "judge": "clip_cov"}, entropy_coeff=0.1, global_step=4)
    check(batch, plan, temperature=0.7, num_minibatches=3, num_epochs=2, lr_schedule="cosine", warmup_steps_ratio=0.2)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_columns(temperature: float, one_rank: Any) -> None:
    batch = random_batch(TURNS)
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
    batch = random_batch(TURNS)
    weights = np.zeros(len(batch.tokens), np.float32)
    for start, end in zip(batch.row_offsets, batch.row_offsets[1:], strict=False):
        first = start + int(batch.loss_mask[start:end].argmax())
        weights[first:end] = np.where(batch.loss_mask[first:end], 0, 0.5)
    metrics = check(batch.with_columns(observation_weights=weights), make_plan(), num_minibatches=2)
    assert metrics["actor/observation_loss"] > 0


def test_observations_without_weight_change_nothing(one_rank: Any) -> None:
    batch = random_batch(TURNS)
    without = batch.with_columns(observation_weights=np.zeros(len(batch.tokens), np.float32))
    found = []
    for each in (batch, without):
        metrics = make_updater(tokens=90).update(one_rank.restart(tokens=90), each, make_plan()).metrics
        found.append((metrics, one_rank.weights()))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])
