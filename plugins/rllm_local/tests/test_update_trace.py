"""The token trace of an update explains its gradient: it is the sum of coefficient times gradient of log-prob."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from close import assert_close
from local_models import build_tiny, make_critic, make_plan, make_updater, plain_rows, random_batch, weights_of

from rllm_core.algorithms.options import PpoParams
from rllm_core.contracts.backend import KlTerm, RolloutCorrection, UpdateResult
from rllm_core.contracts.loss import LossInput
from rllm_core.data.batch import TokenBatch
from rllm_core.data.record import TokenTrace
from rllm_core.updates.losses import ppo
from rllm_local.model import load_model_to_train
from rllm_local.settings import TrainedModelSection, TrainingSection
from rllm_local.update import Updater

MULTI_TURN = [[(5, 3), (2, 4)], [(1, 1)], [(30, 12), (1, 1), (4, 6)], [(3, 0), (2, 5)], [(8, 25)], [(2, 2)]]
SETTINGS = {"num_minibatches": 2, "num_epochs": 2}
TOKEN = RolloutCorrection(mode="token", cap=1.2, floor=0.7, beyond_cap="mask")
SEQUENCE = RolloutCorrection(mode="sequence", cap=1.5, floor=0.0, beyond_cap="truncate")
EVERYTHING: dict[str, Any] = {
    "kl": KlTerm(beta=0.3, estimator="k3"),
    "entropy_coeff": 0.1,
    "rollout_correction": SEQUENCE,
}


def sequence_loss(inputs: LossInput, params: Any) -> torch.Tensor:
    """Each token's loss depends on all tokens of its row."""
    mean = torch.zeros_like(inputs.logprobs)
    for row in inputs.row_ids.unique():
        here = inputs.row_ids == row
        mean = mean + torch.where(here, (inputs.logprobs - inputs.old_logprobs)[here].mean().exp(), 0.0)
    return -inputs.advantages * mean


def dual_clip_mask(inputs: LossInput, params: Any) -> torch.Tensor:
    return ppo(inputs, PpoParams(eps_clip=0.1, clip_ratio_c=1.5))


CASES: dict[str, dict[str, Any]] = {
    **{f"ppo {mode}": {"aggregation": mode} for mode in ("token-mean", "seq-mean-token-mean")},
    "importance_sampling": {"loss": "importance_sampling"},
    "sequence loss": EVERYTHING | {"loss": {"agent": sequence_loss}},
    "kinks": EVERYTHING | {"loss": {"agent": dual_clip_mask}},
    **{f"kl {kind}": {"kl": KlTerm(beta=0.3, estimator=kind)} for kind in ("k1", "k2")},
    "token correction": {"rollout_correction": TOKEN},
    "several micro-batches": EVERYTHING | {"settings": {"max_tokens_per_microbatch": 40}},
    "packed rows": EVERYTHING | {"rollouts": 3, "rows": [[(20, 3 + row)] for row in range(6)]},
    "several roles": EVERYTHING | {"roles": ("solver", "judge")},
    "temperature": {"settings": {"temperature": 0.7}, "entropy_coeff": 0.1},
    "clipped": EVERYTHING | {"settings": {"max_grad_norm": 0.01}},
    "critic": EVERYTHING | {"critic": True},
    "adapter": EVERYTHING | {"adapter": True},
}


@dataclass
class Step:
    """State before an optimizer step."""

    weights: list[torch.Tensor]
    gradient: torch.Tensor
    """Gradient of the policy's loss before clipping, by autograd of the whole loss on the real model."""


def watch_update(updater: Updater, model: Any) -> list[Step]:
    """Filled as `updater` makes its optimizer steps."""
    steps: list[Step] = []
    real = updater._clipped_norms

    def note() -> dict[str, torch.Tensor]:
        weights = [parameter.detach().clone() for parameter in model.parameters()]
        steps.append(Step(weights=weights, gradient=gradients(updater.masters)))
        return real()

    updater._clipped_norms = note  # type: ignore[method-assign]
    return steps


def gradients(parameters: Any) -> torch.Tensor:
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad.clone()).flatten() for p in parameters])


def explain_loss(model: Any, batch: TokenBatch, trace: TokenTrace, number: int, temperature: float) -> torch.Tensor:
    """The gradient of the sum of coefficient times log-prob, and of entropy; row by row, over full logits."""
    model.zero_grad()
    for row, (_, table, logprobs, _) in enumerate(plain_rows(model, batch, temperature)):
        here = (trace.optimizer_step == number) & (trace.row == row)
        at = torch.from_numpy(trace.position[here].astype(np.int64)) - 1
        entropies = -(table[at].exp() * table[at]).sum(dim=-1)
        by_logprob = torch.from_numpy(trace.policy_part[here] + trace.kl_part[here])
        (by_logprob * logprobs[at] + torch.from_numpy(trace.entropy_part[here]) * entropies).sum().backward()
    return gradients(p for p in model.parameters() if p.requires_grad)


def get_trace(result: UpdateResult) -> TokenTrace:
    assert result.trace is not None
    return result.trace


def fill_columns(rows: Any = MULTI_TURN, **options: Any) -> TokenBatch:
    """A batch whose old and reference log-probs are around what is plausible."""
    batch = random_batch(rows, **options)
    generator = np.random.default_rng(6)
    old, ref = (
        (batch.sampling_logprobs + generator.normal(0, size, len(batch.tokens)) * batch.loss_mask).astype(np.float32)
        for size in (0.3, 0.5)
    )
    return batch.with_columns(old_logprobs=old, ref_logprobs=ref)


SHORT = ("kinks", "critic", "adapter")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if name in SHORT else pytest.mark.long, id=name) for name, case in CASES.items()],
)
def test_coefficients_times_log_prob_gradients_give_the_gradient(case: dict[str, Any]) -> None:
    given = dict(case)
    settings = SETTINGS | given.pop("settings", {})
    temperature = settings.get("temperature", 1.0)
    roles = given.pop("roles", ("agent",))
    batch = fill_columns(given.pop("rows", MULTI_TURN), roles=roles, rollouts=given.pop("rollouts", 1))
    model, masters, critic = build_tiny(0), None, None
    if given.pop("critic", False):
        returns = np.where(batch.loss_mask, 0.5, np.nan).astype(np.float32)
        batch, critic = batch.with_columns(returns=returns, values=np.zeros_like(returns)), make_critic(model)
    updater = make_updater(model, critic=critic, **settings)
    if given.pop("adapter", False):
        loaded, masters = load_model_to_train(TrainedModelSection(device="cpu", lora_rank=4), 0)
        model, section = loaded.model, TrainingSection(learning_rate=1e-2, max_grad_norm=1e9, **settings)
        updater = Updater(model, section, total_steps=9, temperature=1.0, max_response_length=50, masters=masters)
    steps = watch_update(updater, model)

    result = updater.update(batch, make_plan(given.pop("loss", "ppo"), roles=roles, trace=True, **given))

    assert len(steps) == 4
    for number, step in enumerate(steps):
        with torch.no_grad():
            for parameter, weight in zip(model.parameters(), step.weights, strict=True):
                parameter.copy_(weight)
        found = explain_loss(model, batch, get_trace(result), number, temperature)
        assert float(step.gradient.norm()) > 0
        assert float((found - step.gradient).norm() / step.gradient.norm()) < 1e-5


def test_every_sampled_token_is_traced_once_an_epoch() -> None:
    batch = fill_columns()

    trace = get_trace(make_updater(build_tiny(0), **SETTINGS).update(batch, make_plan(trace=True)))

    tokens = batch.row_offsets[trace.row] + trace.position
    for epoch in (0, 1):
        assert sorted(tokens[trace.epoch == epoch].tolist()) == np.flatnonzero(batch.loss_mask).tolist()
        assert set(trace.optimizer_step[trace.epoch == epoch].tolist()) == {2 * epoch, 2 * epoch + 1}


def test_clipped_tokens_are_those_that_the_metric_counts() -> None:
    batch = fill_columns(roles=("solver", "judge"))
    plan = make_plan({"solver": "ppo", "judge": "importance_sampling"}, roles=batch.roles, trace=True)

    result = make_updater(build_tiny(0), **SETTINGS).update(batch, plan)

    trace = get_trace(result)
    says = batch.role[trace.row] == batch.roles.index("solver")
    assert np.isnan(trace.clipped[~says]).all()
    assert 0.0 < trace.clipped[says].mean() < 1.0
    assert trace.clipped[says].mean() == pytest.approx(result.metrics["actor/clip_fraction"])
    assert not trace.policy_part[trace.clipped == 1.0].any()


def test_a_trace_changes_no_bit_of_the_update() -> None:
    batch, plan = fill_columns(), make_plan(**EVERYTHING)
    plain, with_trace = build_tiny(0), build_tiny(0)

    without = make_updater(plain, **SETTINGS).update(batch, plan)
    found = make_updater(with_trace, **SETTINGS).update(batch, replace(plan, trace=True))

    assert without.metrics == found.metrics
    assert (without.trace, without.optimizer_steps) == (None, ())
    assert torch.equal(weights_of(plain), weights_of(with_trace))


def test_optimizer_steps_have_parts_of_their_losses() -> None:
    model = build_tiny(0)
    updater = make_updater(model, max_grad_norm=0.5, learning_rate=2e-3, **SETTINGS)
    steps = watch_update(updater, model)

    result = updater.update(fill_columns(), make_plan(trace=True, **EVERYTHING))

    told = result.optimizer_steps
    assert [(each.number, each.epoch, each.learning_rate) for each in told] == [(n, n // 2, 2e-3) for n in range(4)]
    assert len({each.loss_seed for each in told}) == 4
    assert np.mean([each.loss for each in told]) == pytest.approx(result.metrics["actor/loss"], rel=1e-12)
    for each, step in zip(told, steps, strict=True):
        norm = float(step.gradient.norm())
        parts = [each.policy_loss or 0, each.kl_loss or 0, each.entropy_loss or 0]
        assert_close(sum(parts), each.loss, parts)
        assert each.grad_norm == pytest.approx(norm, rel=1e-5)
        assert each.clip_factor == pytest.approx(min(1.0, 0.5 / norm), rel=1e-5)
        assert (each.entropy_loss or 0) < 0
