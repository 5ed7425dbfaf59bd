"""The token trace of an update explains its gradient: it is the sum of coefficient times gradient of log-prob."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from close import assert_close
from local_models import build_tiny, make_critic, make_plan, make_updater, random_batch, weights_of

from rllm_core.algorithms.loss_plugins import PpoParams
from rllm_core.contracts.backend import KlTerm, RolloutCorrection, UpdateResult
from rllm_core.contracts.loss import LossInput
from rllm_core.data.batch import TokenBatch
from rllm_core.data.record import TokenTrace
from rllm_core.updates.losses import ppo
from rllm_local.model import load_model_to_train
from rllm_local.settings import TrainedModelSection, TrainingSection
from rllm_local.update import Updater

AGGREGATIONS = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
MULTI_TURN = [[(5, 3), (2, 4)], [(1, 1)], [(30, 12), (1, 1), (4, 6)], [(3, 0), (2, 5)], [(8, 25)], [(2, 2)]]
SETTINGS = {"num_minibatches": 2, "num_epochs": 2}
TOKEN = RolloutCorrection(mode="token", cap=1.2, floor=0.7, beyond_cap="mask")
SEQUENCE = RolloutCorrection(mode="sequence", cap=1.5, floor=0.0, beyond_cap="truncate")
EVERYTHING: dict[str, Any] = {
    "kl": KlTerm(beta=0.3, estimator="k3"),
    "entropy_coeff": 0.1,
    "rollout_correction": SEQUENCE,
}
CASES: dict[str, dict[str, Any]] = {
    **{f"ppo {mode}": {"aggregation": mode} for mode in AGGREGATIONS},
    **{loss: {"loss": loss} for loss in ("reinforce", "importance_sampling")},
    **{f"kl {kind}": {"kl": KlTerm(beta=0.3, estimator=kind)} for kind in ("k1", "k2", "k3")},
    "entropy bonus": {"entropy_coeff": 0.1},
    "token correction": {"rollout_correction": TOKEN},
    "everything": EVERYTHING,
    "several micro-batches": EVERYTHING | {"settings": {"max_tokens_per_microbatch": 40}},
    "packed rows": EVERYTHING | {"rollouts": 3, "rows": [[(20, 3 + row)] for row in range(6)]},
    "several roles": EVERYTHING | {"roles": ("solver", "judge")},
    "temperature": {"settings": {"temperature": 0.7}, "entropy_coeff": 0.1},
    "clipped": EVERYTHING | {"settings": {"max_grad_norm": 0.01}},
}


@dataclass
class Step:
    """State before an optimizer step."""

    weights: list[torch.Tensor]
    gradient: list[torch.Tensor]
    """Gradient of the policy's loss before clipping, by autograd of the whole loss on the real model."""


def watched(updater: Updater, model: Any) -> list[Step]:
    """Filled as `updater` makes its optimizer steps."""
    steps: list[Step] = []
    real = updater._clipped_norms

    def note() -> dict[str, torch.Tensor]:
        steps.append(
            Step(
                weights=[parameter.detach().clone() for parameter in model.parameters()],
                gradient=[
                    torch.zeros_like(each) if each.grad is None else each.grad.clone() for each in updater.masters
                ],
            )
        )
        return real()

    updater._clipped_norms = note  # type: ignore[method-assign]
    return steps


def explained(model: Any, batch: TokenBatch, trace: TokenTrace, chosen: np.ndarray, temperature: float) -> torch.Tensor:
    """The gradient of the sum of coefficient times log-prob, and of entropy; row by row, over full logits."""
    model.zero_grad()
    for row in np.unique(trace.row[chosen]):
        start, end = batch.row_offsets[row : row + 2]
        ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
        distribution = torch.log_softmax(model(input_ids=ids[None]).logits[0].float() / temperature, dim=-1)
        here = chosen & (trace.row == row)
        at = torch.from_numpy(trace.position[here].astype(np.int64))
        before = distribution[at - 1]
        logprobs = before.gather(1, ids[at, None])[:, 0]
        entropies = -(before.exp() * before).sum(dim=-1)
        by_logprob = torch.from_numpy(trace.policy_part[here] + trace.kl_part[here])
        (by_logprob * logprobs + torch.from_numpy(trace.entropy_part[here]) * entropies).sum().backward()
    return flat([p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters() if p.requires_grad])


def flat(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.flatten() for part in parts])


def traced(result: UpdateResult) -> TokenTrace:
    assert result.trace is not None
    return result.trace


def assert_explains(model: Any, batch: TokenBatch, result: UpdateResult, steps: list[Step], temperature: float) -> None:
    """The trace gives the gradient of every optimizer step."""
    trace = traced(result)
    after = [parameter.detach().clone() for parameter in model.parameters()]
    for number, step in enumerate(steps):
        put(model, step.weights)
        found = explained(model, batch, trace, trace.optimizer_step == number, temperature)
        expected = flat(step.gradient)
        assert float(expected.norm()) > 0
        assert float((found - expected).norm() / expected.norm()) < 1e-5
    put(model, after)


def put(model: Any, weights: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(weight)


@pytest.fixture
def filled() -> Callable[..., TokenBatch]:
    """A batch whose old and reference log-probs are around what is plausible."""

    def make(rows: Any = MULTI_TURN, **options: Any) -> TokenBatch:
        batch = random_batch(rows, **options)
        generator = np.random.default_rng(6)
        old, ref = (
            (batch.sampling_logprobs + generator.normal(0, size, len(batch.tokens)) * batch.loss_mask).astype(
                np.float32
            )
            for size in (0.3, 0.5)
        )
        return batch.with_columns(old_logprobs=old, ref_logprobs=ref)

    return make


@pytest.mark.long
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_coefficients_times_gradients_of_log_probs_are_the_gradient(
    case: dict[str, Any], filled: Callable[..., TokenBatch]
) -> None:
    given = dict(case)
    settings = SETTINGS | given.pop("settings", {})
    temperature = settings.get("temperature", 1.0)
    roles = given.pop("roles", ("agent",))
    batch = filled(given.pop("rows", MULTI_TURN), roles=roles, rollouts=given.pop("rollouts", 1))
    model = build_tiny(0)
    updater = make_updater(model, **settings)
    steps = watched(updater, model)

    result = updater.update(batch, make_plan(given.pop("loss", "ppo"), roles=roles, trace=True, **given))

    assert len(steps) == 4
    assert_explains(model, batch, result, steps, temperature)


def test_every_sampled_token_is_traced_once_an_epoch(filled: Callable[..., TokenBatch]) -> None:
    batch = filled()

    trace = traced(make_updater(build_tiny(0), **SETTINGS).update(batch, make_plan(trace=True)))

    tokens = batch.row_offsets[trace.row] + trace.position
    for epoch in (0, 1):
        assert sorted(tokens[trace.epoch == epoch].tolist()) == np.flatnonzero(batch.loss_mask).tolist()
        assert set(trace.optimizer_step[trace.epoch == epoch].tolist()) == {2 * epoch, 2 * epoch + 1}


def test_clipped_tokens_are_those_that_the_metric_counts(filled: Callable[..., TokenBatch]) -> None:
    batch = filled(roles=("solver", "judge"))
    plan = make_plan({"solver": "ppo", "judge": "importance_sampling"}, roles=batch.roles, trace=True)

    result = make_updater(build_tiny(0), **SETTINGS).update(batch, plan)

    trace = traced(result)
    says = batch.role[trace.row] == batch.roles.index("solver")
    assert np.isnan(trace.clipped[~says]).all()
    assert 0.0 < trace.clipped[says].mean() < 1.0
    assert trace.clipped[says].mean() == pytest.approx(result.metrics["actor/clip_fraction"])
    assert not trace.policy_part[trace.clipped == 1.0].any()


def sequence_loss(inputs: LossInput, params: Any) -> torch.Tensor:
    """Each token's loss depends on all tokens of its row."""
    rows = inputs.row_ids.unique()
    mean = torch.zeros_like(inputs.logprobs)
    for row in rows:
        here = inputs.row_ids == row
        mean = mean + torch.where(here, (inputs.logprobs - inputs.old_logprobs)[here].mean().exp(), 0.0)
    return -inputs.advantages * mean


def dual_clipped(inputs: LossInput, params: Any) -> torch.Tensor:
    return ppo(inputs, PpoParams(eps_clip=0.1, clip_ratio_c=1.5))


@pytest.mark.parametrize("loss", [sequence_loss, dual_clipped])
def test_losses_over_rows_and_with_kinks_are_explained(loss: Any, filled: Callable[..., TokenBatch]) -> None:
    batch, model = filled(), build_tiny(0)
    updater = make_updater(model, **SETTINGS)
    steps = watched(updater, model)

    result = updater.update(batch, make_plan({"agent": loss}, trace=True, **EVERYTHING))

    assert_explains(model, batch, result, steps, 1.0)


def test_a_critic_leaves_the_coefficients_of_the_policy(filled: Callable[..., TokenBatch]) -> None:
    batch, model = filled(), build_tiny(0)
    returns = np.where(batch.loss_mask, 0.5, np.nan).astype(np.float32)
    batch = batch.with_columns(returns=returns, values=np.zeros_like(returns))
    updater = make_updater(model, critic=make_critic(model), **SETTINGS)
    steps = watched(updater, model)

    result = updater.update(batch, make_plan(trace=True, **EVERYTHING))

    assert_explains(model, batch, result, steps, 1.0)


def test_adapters_are_explained(filled: Callable[..., TokenBatch]) -> None:
    loaded, masters = load_model_to_train(TrainedModelSection(device="cpu", lora_rank=4), 0)
    section = TrainingSection(learning_rate=1e-2, max_grad_norm=1e9, **SETTINGS)
    updater = Updater(loaded.model, section, total_steps=9, temperature=1.0, max_response_length=50, masters=masters)
    batch = filled()
    steps = watched(updater, loaded.model)

    result = updater.update(batch, make_plan(trace=True, **EVERYTHING))

    assert_explains(loaded.model, batch, result, steps, 1.0)


def test_a_trace_changes_no_bit_of_the_update(filled: Callable[..., TokenBatch]) -> None:
    batch, plan = filled(), make_plan(**EVERYTHING)
    plain, with_trace = build_tiny(0), build_tiny(0)

    without = make_updater(plain, **SETTINGS).update(batch, plan)
    found = make_updater(with_trace, **SETTINGS).update(batch, replace(plan, trace=True))

    assert without.metrics == found.metrics
    assert (without.trace, without.optimizer_steps) == (None, ())
    assert torch.equal(weights_of(plain), weights_of(with_trace))


def test_optimizer_steps_are_told_with_the_parts_of_their_losses(filled: Callable[..., TokenBatch]) -> None:
    batch, model = filled(), build_tiny(0)
    updater = make_updater(model, max_grad_norm=0.5, learning_rate=2e-3, **SETTINGS)
    steps = watched(updater, model)

    result = updater.update(batch, make_plan(trace=True, **EVERYTHING))

    told = result.optimizer_steps
    assert [(each.number, each.epoch, each.learning_rate) for each in told] == [
        (0, 0, 2e-3),
        (1, 0, 2e-3),
        (2, 1, 2e-3),
        (3, 1, 2e-3),
    ]
    assert len({each.loss_seed for each in told}) == 4
    assert np.mean([each.loss for each in told]) == pytest.approx(result.metrics["actor/loss"], rel=1e-12)
    for each, step in zip(told, steps, strict=True):
        norm = float(flat(step.gradient).norm())
        parts = [each.policy_loss or 0, each.kl_loss or 0, each.entropy_loss or 0]
        assert_close(sum(parts), each.loss, parts)
        assert each.grad_norm == pytest.approx(norm, rel=1e-5)
        assert each.clip_factor == pytest.approx(min(1.0, 0.5 / norm), rel=1e-5)
        assert (each.entropy_loss or 0) < 0
