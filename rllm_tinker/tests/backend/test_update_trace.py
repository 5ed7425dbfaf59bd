"""The token trace of an update: what the service and this process make of the loss, token by token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tinker_plans import plan_of

from rllm_backend_kit.loss import RoleLosses
from rllm_backend_kit.minibatches import minibatch_weights
from rllm_core.contracts.backend import KlTerm, RolloutCorrection, UpdatePlan, UpdateResult
from rllm_core.data.batch import TokenBatch
from rllm_core.data.record import TokenTrace
from rllm_tinker import update as update_module
from rllm_tinker.datums import Rows
from rllm_tinker.settings import TrainingSection
from rllm_tinker.update import Updater, custom_loss

NATIVE = [
    "importance_sampling",
    "reinforce",
    "cross_entropy",
    "cispo",
    {"name": "cispo", "eps_clip": 1.5},
    "dro",
    {"name": "dro", "beta": 2.0},
    {"name": "gspo", "sequence_eps_clip": 0.02, "sequence_eps_clip_high": 0.03},
    "ppo",
    {"name": "ppo", "eps_clip": 0.01, "eps_clip_high": 0.02},
]
EVERYTHING: dict[str, Any] = {
    "kl": KlTerm(beta=0.5, estimator="k3"),
    "entropy_coeff": 0.2,
    "rollout_correction": RolloutCorrection(mode="sequence", cap=1.02, floor=0.0, beyond_cap="truncate"),
}


def run_update(connection: Any, batch: TokenBatch, plan: UpdatePlan, **settings: Any) -> UpdateResult:
    """Of a fresh LoRA model."""
    values = {"learning_rate": 0.01, "eps": 1.0, "num_minibatches": 2, "num_epochs": 2} | settings
    updater = Updater(TrainingSection(**values), total_steps=10, max_response_length=8, fused=False)
    result: UpdateResult = connection.ask(updater.update(connection.trainer(), batch, plan))
    return result


def trace_of(result: UpdateResult) -> TokenTrace:
    assert result.trace is not None
    return result.trace


def in_order(result: UpdateResult, name: str) -> np.ndarray:
    """A column by optimizer step, row and position."""
    trace = trace_of(result)
    column: np.ndarray = getattr(trace, name)
    return column[np.lexsort((trace.position, trace.row, trace.optimizer_step))]


@pytest.fixture
def off_policy_batch(batch: TokenBatch) -> TokenBatch:
    """With old and reference log-probs that are not the trainer's."""
    generator = np.random.default_rng(1)
    old, ref = (generator.normal(scale=size, size=len(batch.tokens)).astype(np.float32) for size in (0.05, 0.5))
    known = batch.sampling_logprobs
    return batch.with_columns(
        old_logprobs=(known + old) * batch.loss_mask, ref_logprobs=(known + ref) * batch.loss_mask
    )


@pytest.mark.long
@pytest.mark.parametrize("loss", NATIVE, ids=str)
def test_service_losses_make_the_same_steps_as_rllm(
    connection: Any, off_policy_batch: TokenBatch, loss: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(loss, trace=True)
    there = run_update(connection, off_policy_batch, plan)
    monkeypatch.setattr(update_module, "native_loss", lambda choice: None)
    here = run_update(connection, off_policy_batch, plan)

    trace = trace_of(there)
    first, second = trace.logprob[np.lexsort((trace.position, trace.row, trace.epoch))].reshape(2, -1)
    assert np.abs(second - first).max() > 1e-3, "the updates did nothing"
    for name in ("row", "position", "optimizer_step", "logprob", "policy_part", "weight"):
        np.testing.assert_allclose(in_order(there, name), in_order(here, name), atol=1e-5)
    for one, other in zip(there.optimizer_steps, here.optimizer_steps, strict=True):
        assert one.policy_loss == pytest.approx(other.policy_loss, abs=1e-5)
        assert one.loss == (None if "dro" in str(loss) else pytest.approx(one.policy_loss, abs=1e-6))
    for name in ("actor/kl_old_new", "actor/ratio_mean", "actor/rollout_logprob_difference"):
        assert there.metrics[name] == pytest.approx(here.metrics[name], abs=1e-5)
    assert there.metrics.get("actor/clip_fraction") == pytest.approx(here.metrics.get("actor/clip_fraction"))
    if "dro" not in str(loss):  # the service's sum has other tokens' constants in it
        assert there.metrics["actor/loss"] == pytest.approx(here.metrics["actor/loss"], abs=1e-5)


def test_traced_parts_add_up_to_the_sent_gradient(connection: Any, off_policy_batch: TokenBatch) -> None:
    plan = plan_of("ppo", trace=True, **EVERYTHING)
    trace = trace_of(run_update(connection, off_policy_batch, plan, num_minibatches=1, num_epochs=1))

    rows = np.arange(off_policy_batch.n_rows)
    part = Rows.from_batch(off_policy_batch, rows)
    weights = minibatch_weights(off_policy_batch, rows, plan.aggregation, 8)
    column = np.zeros(len(off_policy_batch.tokens), np.float32)
    at = off_policy_batch.row_offsets[trace.row] + trace.position
    column[at] = trace.logprob
    logprobs = [torch.from_numpy(column[start:end]).requires_grad_() for start, end in part.spans]
    custom_loss(part, weights, plan, RoleLosses(), 0)(logprobs).backward()
    sent = part.column([each.grad.numpy() for each in logprobs if each.grad is not None])

    found = trace.policy_part + trace.kl_part + trace.entropy_part
    np.testing.assert_allclose(found, sent[at], atol=1e-7)
    assert np.abs(trace.entropy_part).min() > 0
    assert np.isnan(trace.entropy).all()


def test_optimizer_steps_have_reported_gradient_norms(connection: Any, off_policy_batch: TokenBatch) -> None:
    result = run_update(connection, off_policy_batch, plan_of("ppo", trace=True), max_grad_norm=1e-3)

    norms = [each.grad_norm or 0.0 for each in result.optimizer_steps]
    assert len(norms) == 4
    assert np.mean(norms) == pytest.approx(result.metrics["actor/grad_norm"])
    assert [each.clip_factor for each in result.optimizer_steps] == [pytest.approx(1e-3 / norm) for norm in norms]


def test_a_trace_changes_no_metric(connection: Any, off_policy_batch: TokenBatch) -> None:
    plan = plan_of("ppo", **EVERYTHING)

    plain = run_update(connection, off_policy_batch, plan)

    assert plain.trace is None
    assert plain.metrics == run_update(connection, off_policy_batch, replace(plan, trace=True)).metrics
