"""Losses that are wrong in one way each, and what the contract tells their authors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rllm_core.contracts import LossInput, LossPlugin, NoParams
from rllm_core.updates.losses import importance_ratio
from rllm_plugin_kit import LossContract

Function = Callable[[LossInput, NoParams], Any]


def record(function: Function, **fields: Any) -> LossPlugin[NoParams]:
    return LossPlugin(**{"name": "mine", "summary": "Mine.", "params": NoParams, "load": lambda: function, **fields})


def good(inputs: LossInput, params: NoParams) -> Tensor:
    return -inputs.advantages * importance_ratio(inputs)


def changes_advantages(inputs: LossInput, params: NoParams) -> Tensor:
    inputs.advantages.mul_(0.5)
    return good(inputs, params)


def whitens_over_what_is_there(inputs: LossInput, params: NoParams) -> Tensor:
    centred = inputs.advantages - inputs.advantages.sum() / max(len(inputs.advantages), 1)
    return -centred * importance_ratio(inputs)


def masked_by_position(inputs: LossInput, params: NoParams) -> Tensor:
    generator = torch.Generator().manual_seed(inputs.seed)
    return good(inputs, params) * (torch.rand(len(inputs.logprobs), generator=generator) < 0.5)


def from_the_sampler(inputs: LossInput) -> Tensor:
    return -inputs.advantages * (inputs.logprobs - inputs.sampling_logprobs).clamp(-20, 20).exp()  # type: ignore[operator]


def of(function: Callable[[LossInput], Any]) -> Function:
    """Return a loss of these inputs."""
    return lambda inputs, params: function(inputs)


def of_good(function: Callable[[Tensor], Tensor]) -> Function:
    """Return a loss that changes the losses of a good one."""
    return lambda inputs, params: function(good(inputs, params))


FINITE = "it_returns_one_finite_loss_per_token"
GRADIENT = "gradient_reaches_log_probs_and_is_finite"
SURROGATE = of(lambda inputs: -inputs.advantages * importance_ratio(inputs).detach() * inputs.logprobs)


def nan_in_the_branch_not_taken(inputs: LossInput, params: NoParams) -> Tensor:
    log_ratio = inputs.logprobs - inputs.old_logprobs
    return -inputs.advantages * torch.where(log_ratio.abs() > 20, torch.ones_like(log_ratio), log_ratio.exp())


def test_a_good_loss_has_no_complaints(complaints: Any) -> None:
    assert complaints(LossContract, record(good)) == {}


@pytest.mark.parametrize(
    ("function", "test", "told"),
    [
        (of_good(torch.mean), FINITE, "rllm.algorithm.loss_agg_mode"),
        (
            of(lambda inputs: -inputs.advantages * (inputs.logprobs - inputs.old_logprobs).exp()),
            "extreme_ratios_stay_finite",
            "Bound ratios before",
        ),
        (of(lambda inputs: inputs.advantages * inputs.logprobs.clamp_(max=-0.01)), GRADIENT, "It writes into"),
        (changes_advantages, "it_does_not_change_its_inputs", "`advantages`"),
        (of_good(torch.detach), GRADIENT, "does not depend"),
        (of(lambda inputs: -inputs.advantages + 0 * inputs.logprobs), GRADIENT, "has a gradient"),
        (SURROGATE, "gradient_matches_the_numeric_slope", "`gradient = 'surrogate'`"),
        (whitens_over_what_is_there, "micro_batches_do_not_change_losses", "gives a row"),
        (
            of_good(lambda losses: losses * (torch.rand_like(losses) < 0.5)),
            "same_inputs_and_seed_give_same_losses",
            "draws from the",
        ),
        (masked_by_position, "micro_batches_do_not_change_losses", "inputs.seed"),
        (of_good(lambda losses: losses.double()), FINITE, "torch.float64"),
        (of(from_the_sampler), "optional_columns_may_be_absent", "sampling_logprobs"),
        (
            of(lambda inputs: from_the_sampler(inputs) if inputs.sampling_logprobs is not None else -inputs.logprobs),
            "missing_sampler_log_probs_work",
            "sampling_logprobs",
        ),
        (of_good(lambda losses: losses - 0 * losses.max()), "no_tokens_give_no_losses", "RuntimeError"),
        (nan_in_the_branch_not_taken, "extreme_ratios_stay_finite", "torch.where"),
    ],
)
def test_contract_reports_the_mistake(complaint: Any, function: Function, test: str, told: str) -> None:
    assert told in complaint(LossContract, record(function), test)


def test_a_declared_surrogate_gradient_is_accepted(complaint: Any) -> None:
    test = "gradient_matches_the_numeric_slope"
    assert complaint(LossContract, record(SURROGATE), test, gradient="surrogate") == ""


def test_unknown_needs_are_reported(complaint: Any) -> None:
    told = complaint(LossContract, record(good, needs=frozenset({"ref_logprob"})), "declared_needs_exist")
    assert "'ref_logprobs'" in told


def test_declared_needs_are_filled(complaint: Any) -> None:
    def towards_the_reference(inputs: LossInput, params: NoParams) -> Tensor:
        assert inputs.ref_logprobs is not None
        return good(inputs, params) + (inputs.logprobs - inputs.ref_logprobs).square()

    assert "AssertionError" in complaint(LossContract, record(towards_the_reference), FINITE)
    assert complaint(LossContract, record(towards_the_reference, needs=frozenset({"ref_logprobs"})), FINITE) == ""
