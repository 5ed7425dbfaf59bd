"""Without an advantage nothing is learnt, by any loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rllm_core.contracts.loss import LossInput
from rllm_estimators.loss_options import ClipCovParams, KlCovParams
from rllm_estimators.plugin import rllm_losses

LOSSES: dict[str, Any] = {record.name: record.load() for record in rllm_losses()}
OPTIONS: dict[str, Any] = {record.name: record.params() for record in rllm_losses()} | {
    # Some tokens of each row, chosen at random.
    "kl_cov": KlCovParams(kl_cov_ratio=0.3),
    "clip_cov": ClipCovParams(clip_cov_ratio=0.3, clip_cov_lb=0.0, clip_cov_ub=9.0),
}

names = pytest.mark.parametrize("name", LOSSES)


def some_rows(seed: int, count: int = 6) -> LossInput:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (count,), generator=generator)
    ids = torch.randperm(20, generator=generator)[:count]
    total = int(lengths.sum())
    old = -torch.rand(total, generator=generator) * 4 - 0.1
    return LossInput(
        logprobs=(old + 0.3 * torch.randn(total, generator=generator)).clamp(max=-0.01),
        old_logprobs=old,
        ref_logprobs=old,
        sampling_logprobs=old + 0.01 * torch.randn(total, generator=generator),
        advantages=torch.repeat_interleave(torch.randn(count, generator=generator), lengths),
        row_ids=torch.repeat_interleave(ids, lengths),
        seed=seed,
    )


def gradient(name: str, inputs: LossInput, weights: Tensor | float = 1.0) -> Tensor:
    logprobs = inputs.logprobs.clone().requires_grad_()
    (LOSSES[name](replace(inputs, logprobs=logprobs), OPTIONS[name]) * weights).sum().backward()
    assert logprobs.grad is not None
    return logprobs.grad


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"a2po", "dro", "ipo"}))
def test_without_an_advantage_nothing_is_learnt(name: str) -> None:
    inputs = some_rows(7)
    assert (gradient(name, replace(inputs, advantages=torch.zeros_like(inputs.advantages))) == 0).all()


def test_dro_without_an_advantage_goes_back_to_the_old_policy() -> None:
    inputs = some_rows(7)
    found = gradient("dro", replace(inputs, advantages=torch.zeros_like(inputs.advantages)))
    torch.testing.assert_close(found, OPTIONS["dro"].beta * (inputs.logprobs - inputs.old_logprobs))
