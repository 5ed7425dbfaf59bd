"""Updates through a real server: the service's own losses and those computed here make the same step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from expecting import expect_error
from tinker_plans import plan_of

from rllm_core.contracts.backend import KlTerm, RolloutCorrection, UpdatePlan
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import BackendError
from rllm_tinker import update as update_module
from rllm_tinker.datums import NativeLoss, Rows
from rllm_tinker.settings import TrainingSection
from rllm_tinker.update import Updater

AGGREGATIONS = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


def _updater(*, fused: bool = False, **settings: Any) -> Updater:
    # A large eps makes an Adam step proportional to the gradient, so that a wrong one is seen.
    values = {"learning_rate": 0.01, "eps": 1.0, "num_minibatches": 2} | settings
    return Updater(TrainingSection(**values), total_steps=10, max_response_length=8, fused=fused)


def _old(batch: TokenBatch) -> TokenBatch:
    """With old log-probs that differ from the trainer's, so that ratios are not 1 and bounds matter."""
    noise = np.random.default_rng(1).normal(scale=0.05, size=len(batch.tokens)).astype(np.float32)
    return batch.with_columns(old_logprobs=(batch.sampling_logprobs + noise) * batch.loss_mask)


def _after(connection: Any, batch: TokenBatch, plan: UpdatePlan, **settings: Any) -> tuple[Any, dict[str, float]]:
    """Log-probs of the batch's tokens after one update of a fresh LoRA model, and the update's metrics."""
    trainer = connection.trainer()
    metrics = connection.ask(_updater(**settings).update(trainer, batch, plan)).metrics
    return _logprobs(connection, trainer, batch), metrics


def _logprobs(connection: Any, trainer: Any, batch: TokenBatch) -> Any:
    rows = Rows.from_batch(batch, np.arange(batch.n_rows))
    found = connection.ask(trainer.forward(rows.datums(weights=batch.loss_mask.astype(np.float32))))
    return rows.column(found.logprobs) * batch.loss_mask


def _correction(mode: Any) -> dict[str, Any]:
    return {"rollout_correction": RolloutCorrection(mode=mode, cap=1.02, floor=0.97, beyond_cap="truncate")}


@pytest.mark.parametrize(
    ("loss", "changes", "minibatches"),
    [
        *(pytest.param("ppo", {"aggregation": each}, 1, marks=pytest.mark.long) for each in AGGREGATIONS),
        pytest.param("dro", {"aggregation": "token-sum"}, 1, marks=pytest.mark.long),
        pytest.param("cross_entropy", {"aggregation": "seq-mean-token-mean"}, 1, marks=pytest.mark.long),
        ("ppo", _correction("token"), 2),
        ("ppo", _correction("sequence"), 2),
        ("ppo", {"judge": "cross_entropy"}, 1),
    ],
    ids=str,
)
def test_losses_make_the_same_step_there_and_here(
    connection: Any,
    batch: TokenBatch,
    loss: str,
    changes: dict[str, Any],
    minibatches: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch, plan = _old(batch), plan_of(loss, **changes)
    there, _ = _after(connection, batch, plan, num_minibatches=minibatches)
    if "aggregation" not in changes:
        plain, _ = _after(connection, batch, plan_of(loss), num_minibatches=minibatches)
        assert np.abs(there - plain).max() > 1e-4
    monkeypatch.setattr(update_module, "native_loss", lambda choice: None)
    here, _ = _after(connection, batch, plan, num_minibatches=minibatches)
    np.testing.assert_allclose(there, here, atol=1e-5)


@pytest.mark.parametrize("loss", ["gmpo", "kl_cov", {"name": "ppo", "clip_ratio_c": 3.0}], ids=str)
def test_other_losses_are_computed_here(connection: Any, batch: TokenBatch, loss: Any) -> None:
    after, metrics = _after(connection, batch, plan_of(loss))
    assert np.abs(after - batch.sampling_logprobs * batch.loss_mask).max() > 1e-3
    assert np.isfinite(list(metrics.values())).all()


def test_the_kl_term_pulls_towards_the_reference(connection: Any, batch: TokenBatch) -> None:
    reference = (batch.sampling_logprobs + 0.5) * batch.loss_mask
    still = batch.with_columns(advantages=np.zeros_like(batch.sampling_logprobs), ref_logprobs=reference)
    plan = plan_of("ppo", kl=KlTerm(beta=1.0, estimator="k2"))
    after, metrics = _after(connection, still, plan)
    assert (after - batch.sampling_logprobs)[batch.loss_mask].mean() > 1e-3
    assert metrics["actor/kl_ref"] > 0


def test_the_entropy_bonus_flattens_the_policy(connection: Any, batch: TokenBatch) -> None:
    still = batch.with_columns(advantages=np.zeros_like(batch.sampling_logprobs))
    after, _ = _after(connection, still, plan_of("ppo", entropy_coeff=1.0), learning_rate=0.05, num_epochs=4)
    likely = batch.loss_mask & (batch.sampling_logprobs > np.median(batch.sampling_logprobs[batch.loss_mask]))
    rare = batch.loss_mask & ~likely
    change = after - batch.sampling_logprobs
    assert change[rare].mean() > change[likely].mean()


@pytest.mark.parametrize("loss", ["dro", "sapo"])
def test_fused_gradient_and_step_equal_separate_requests(connection: Any, batch: TokenBatch, loss: str) -> None:
    apart, _ = _after(connection, batch, plan_of(loss))
    trainer = connection.trainer()
    connection.ask(_updater(fused=True).update(trainer, batch, plan_of(loss)))
    np.testing.assert_array_equal(_logprobs(connection, trainer, batch), apart)


def test_the_adam_settings_are_sent(connection: Any, batch: TokenBatch) -> None:
    plain, metrics = _after(connection, batch, plan_of("ppo"))
    assert metrics["actor/lr"] == 0.01
    changed = [{"eps": 0.1}, {"beta1": 0.1}, {"beta2": 0.1}, {"max_grad_norm": 1e-3}, {"weight_decay": 5.0}]
    for setting in changed:
        other, _ = _after(connection, batch, plan_of("ppo"), **setting)
        assert np.abs(other - plain).max() > 1e-7, setting


def test_the_learning_rate_rises_from_a_positive_value(connection: Any, batch: TokenBatch) -> None:
    _, metrics = _after(connection, batch, plan_of("ppo"), warmup_steps_ratio=0.5)
    assert metrics["actor/lr"] == pytest.approx(0.01 / 5)


def test_update_huge_advantages_are_named_with_reward(connection: Any, batch: TokenBatch) -> None:
    huge = batch.with_columns(advantages=np.where(batch.loss_mask, 1e22, 0).astype(np.float32))
    with expect_error(BackendError, "gradient-not-finite", "advantages", "1e+22", "reward"):
        connection.ask(_updater().update(connection.trainer(), huge, plan_of("ppo")))


@pytest.mark.parametrize("kind", ["snapshot", "inflight"])
def test_snapshot_keeps_weights_and_inflight_gets_newer(connection: Any, batch: TokenBatch, kind: Any) -> None:
    trainer = connection.trainer()
    sampler = connection.ask(trainer.sampler(kind))
    tokens = batch.tokens[: int(batch.row_offsets[1])]
    before = connection.ask(sampler.logprobs(tokens))
    connection.ask(_updater(learning_rate=0.5).update(trainer, batch, plan_of("ppo")))
    connection.ask(trainer.sampler(kind))
    after = connection.ask(sampler.logprobs(tokens))
    assert (np.abs(after - before).max() > 1e-4) == (kind == "inflight")


def test_loss_rejected_by_service_fails_with_its_message(
    connection: Any, batch: TokenBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_module, "native_loss", lambda choice: NativeLoss(name="stable_reinforce"))
    with expect_error(BackendError, "service-rejected-request", "stable_reinforce"):
        connection.ask(_updater().update(connection.trainer(), batch, plan_of("ppo")))


def _prompts(batch: TokenBatch) -> Any:
    """True if a token belongs to a prompt and has a token before it, (n_token,)."""
    found = ~batch.loss_mask
    found[batch.row_offsets[:-1]] = False
    return found


def test_observations_are_trained_by_cross_entropy(connection: Any, batch: TokenBatch) -> None:
    prompts = _prompts(batch)
    still = batch.with_columns(advantages=np.zeros_like(batch.advantages))
    observed = still.with_columns(observation_weights=prompts.astype(np.float32))
    there, metrics = _after(connection, observed, plan_of("ppo"), num_minibatches=1)
    supervised = replace(batch, loss_mask=prompts, sampling_logprobs=np.zeros_like(batch.sampling_logprobs))
    _, expected = _after(connection, supervised, plan_of("cross_entropy"), num_minibatches=1)
    assert metrics["actor/observation_loss"] == pytest.approx(expected["actor/loss"], abs=1e-6)
    assert metrics["actor/grad_norm"] == pytest.approx(expected["actor/grad_norm"], rel=1e-6)
    assert np.abs(there - batch.sampling_logprobs * batch.loss_mask).max() > 1e-4, "the update did nothing"


def test_gradient_of_observations_is_added(connection: Any, batch: TokenBatch) -> None:
    weights = 0.5 * _prompts(batch).astype(np.float32)
    still = batch.with_columns(advantages=np.zeros_like(batch.advantages))
    # Small steps, and an eps far above the gradient: log-probs change in proportion to it, so the changes add up.
    settings = {"num_minibatches": 1, "learning_rate": 0.1, "eps": 1e3}
    (both, metrics), (policy, policy_metrics), (observed, _) = (
        _after(connection, each, plan_of("ppo"), **settings)
        for each in (
            batch.with_columns(observation_weights=weights),
            batch,
            still.with_columns(observation_weights=weights),
        )
    )
    before = batch.sampling_logprobs * batch.loss_mask
    np.testing.assert_allclose(both - before, (policy - before) + (observed - before), rtol=0.02, atol=1e-4)
    assert np.abs(both - policy).max() > 1e-3
    assert metrics["actor/loss"] == policy_metrics["actor/loss"]


def test_observations_without_weight_change_nothing(connection: Any, batch: TokenBatch) -> None:
    without = batch.with_columns(observation_weights=np.zeros(len(batch.tokens), np.float32))
    plan = plan_of("ppo")
    (logprobs, metrics), (expected, expected_metrics) = (_after(connection, each, plan) for each in (without, batch))
    assert metrics == expected_metrics
    np.testing.assert_array_equal(logprobs, expected)
