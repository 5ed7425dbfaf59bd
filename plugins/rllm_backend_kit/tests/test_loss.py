"""What goes with a policy loss: formulas, what they are on average, gradients, and that they stay finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from rllm_backend_kit.loss import (
    LossTerms,
    kl_divergence,
    loss_terms,
    rollout_weights,
    token_objective,
    value_loss,
)
from rllm_core.contracts.backend import KlTerm, RolloutCorrection, UpdatePlan
from rllm_core.contracts.loss import LossInput

ESTIMATORS: tuple[Literal["k1", "k2", "k3"], ...] = ("k1", "k2", "k3")
EXTREMES = [-1e4, -300.0, -90.0, -20.5, -1e-3, -1e-8, 0.0]
TOKEN = RolloutCorrection(mode="token", cap=2.0, floor=0.0, beyond_cap="truncate")
SEQUENCE = replace(TOKEN, mode="sequence")


def tensor(*values: float, requires_grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=requires_grad)


def gradient(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    at = at.detach().clone().requires_grad_()
    (result,) = torch.autograd.grad(function(at).sum(), at)
    return result


@given(st.lists(st.tuples(st.floats(-40, 0, width=32), st.floats(-40, 0, width=32)), min_size=1))
def test_k2_and_k3_are_never_negative(pairs: list[tuple[float, float]]) -> None:
    policy, reference = torch.tensor(pairs).T
    for estimator in ("k2", "k3"):
        assert (kl_divergence(policy, reference, estimator) >= 0).all()


def test_divergence_is_not_clamped_for_small_exponentials() -> None:
    """verl bounds k3 at 10."""
    assert kl_divergence(tensor(-19.0), tensor(0.0), "k3").item() == pytest.approx(math.exp(19) - 20, rel=1e-12)
    assert kl_divergence(tensor(-500.0), tensor(0.0), "k1").item() == -500
    assert kl_divergence(tensor(-500.0), tensor(0.0), "k2").item() == 125_000


def test_divergence_and_gradient_are_always_finite() -> None:
    for ref_logprob in EXTREMES:
        for logprob in EXTREMES:
            for estimator in ESTIMATORS:
                policy = torch.tensor([logprob], requires_grad=True)
                divergence = kl_divergence(policy, torch.tensor([ref_logprob]), estimator)
                divergence.sum().backward()
                assert policy.grad is not None
                assert divergence.isfinite().all()
                assert policy.grad.isfinite().all()


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize("distance", [1.0, 19.9, 20.0, 20.1, 90.0, 1e4])
def test_divergence_gradient_always_points_to_the_reference(estimator: Literal["k2", "k3"], distance: float) -> None:
    of = lambda logprobs: kl_divergence(logprobs, torch.tensor([-5.0]), estimator)  # noqa: E731
    assert gradient(of, torch.tensor([-5.0 - distance])) < 0, "less likely than it was: minimizing makes it likelier"
    assert gradient(of, torch.tensor([-5.0 + distance])) > 0


def weights(old: list[float], sampled: list[float], rows: list[int], correction: RolloutCorrection) -> list[float]:
    return rollout_weights(tensor(*old), tensor(*sampled), torch.tensor(rows), correction).tolist()


def ratios(*values: float) -> tuple[list[float], list[float]]:
    """Old and sampling log-probs with these ratios."""
    return [math.log(value) - 1.0 for value in values], [-1.0] * len(values)


def test_weights_have_no_gradient() -> None:
    found = rollout_weights(tensor(-1.0, requires_grad=True), tensor(-1.1), torch.tensor([0]), TOKEN)
    assert not found.requires_grad


def test_value_loss_with_and_without_clip() -> None:
    values, returns, old = tensor(1.0, 0.0, 2.0, -1.0), tensor(3.0, 0.5, 0.0, 0.0), tensor(0.0, 0.0, 0.0, 0.0)
    assert value_loss(values, returns, old, None).tolist() == pytest.approx([2.0, 0.125, 2.0, 0.5])
    # The third: held within 0.2 of 0 it would be near its target; the larger loss is the unclipped one.
    clipped = value_loss(values, returns, old, 0.2).tolist()
    assert clipped == pytest.approx([0.5 * 2.8**2, 0.125, 2.0, 0.5])


@pytest.mark.parametrize("clip", [None, 0.3])
def test_token_without_target_has_no_value_loss(clip: float | None) -> None:
    values = tensor(5.0, 1.0, requires_grad=True)
    losses = value_loss(values, tensor(math.nan, 3.0), tensor(0.0, 0.9), clip)
    losses.sum().backward()
    assert losses.tolist() == [0.0, pytest.approx(2.0)]
    assert values.grad is not None
    assert values.grad.tolist() == [0.0, pytest.approx(-2.0)]


def plan(**changes: Any) -> UpdatePlan:
    fields: dict[str, Any] = {"global_step": 0, "losses": {}, "aggregation": "", "entropy_coeff": 0.0, "seed": 0}
    return UpdatePlan(**fields | changes)


def inputs(length: int = 3) -> LossInput:
    generator = torch.Generator().manual_seed(1)
    columns = -torch.rand(4, length, generator=generator, dtype=torch.float64)
    return LossInput(
        logprobs=columns[0],
        old_logprobs=columns[1],
        sampling_logprobs=columns[2],
        ref_logprobs=columns[3],
        advantages=torch.ones(length, dtype=torch.float64),
        row_ids=torch.zeros(length, dtype=torch.int64),
    )


KL = KlTerm(beta=0.3, estimator="k2")


def test_plan_without_terms_keeps_the_policy_loss() -> None:
    losses, nothing = tensor(1.0, 2.0, 3.0), LossTerms(divergence=None, weights=None)
    bare = replace(inputs(), ref_logprobs=None, sampling_logprobs=None)
    assert vars(loss_terms(bare, plan())) == vars(nothing)
    assert token_objective(losses, nothing, tensor(9.0, 9.0, 9.0), plan()) is losses


def test_objective_is_weighted_loss_plus_kl_minus_entropy() -> None:
    data, losses, entropies = inputs(), tensor(1.0, -2.0, 3.0), tensor(0.1, 0.2, 0.3)
    wanted = plan(kl=KL, rollout_correction=TOKEN, entropy_coeff=0.5)
    terms = loss_terms(data, wanted)
    assert data.ref_logprobs is not None
    assert data.sampling_logprobs is not None
    expected = (
        losses * rollout_weights(data.old_logprobs, data.sampling_logprobs, data.row_ids, TOKEN)
        + 0.3 * (data.logprobs - data.ref_logprobs) ** 2 / 2
        - 0.5 * entropies
    )
    torch.testing.assert_close(token_objective(losses, terms, entropies, wanted), expected)


@pytest.mark.parametrize("mode", ["token", "sequence"])
def test_terms_of_no_tokens_are_empty(mode: Literal["token", "sequence"]) -> None:
    wanted = plan(kl=KL, rollout_correction=replace(TOKEN, mode=mode))
    nothing = torch.empty(0, dtype=torch.float64)
    terms = loss_terms(inputs(0), wanted)
    assert token_objective(nothing, terms, nothing, wanted).sum() == 0
    assert value_loss(nothing, nothing, nothing, 0.2).sum() == 0


@pytest.mark.parametrize(
    ("values", "rows", "changes", "expected"),
    [
        ([0.5, 1.0, 1.9, 3.0], [0, 0, 1, 1], {}, [0.5, 1.0, 1.9, 2.0]),
        ([0.4, 0.6, 1.9, 2.1], [0, 0, 0, 0], {"floor": 0.5, "beyond_cap": "mask"}, [0.0, 0.6, 1.9, 0.0]),
        ([0.4, 2.1], [0, 0], {"floor": 0.5}, [0.0, 2.0]),
        ([1.0], [0], {"cap": 1.0, "floor": 1.0, "beyond_cap": "mask"}, [1.0]),
        (
            [0.5, 3.0, 2.0, 3.0, 0.1],
            [4, 4, 1, 1, 7],
            {"mode": "sequence", "cap": 5.0},
            [1.5, 1.5, 5.0, 5.0, 0.1],
        ),
    ],
    ids=["cap", "mask", "floor", "exactly a bound", "sequence"],
)
def test_weights_are_ratios_within_the_bounds(
    values: list[float], rows: list[int], changes: dict[str, Any], expected: list[float]
) -> None:
    assert weights(*ratios(*values), rows, replace(TOKEN, **changes)) == pytest.approx(expected)
