"""`clip_ratio_c` of the core's ppo."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError

from rllm_core.algorithms.loss_plugins import PpoParams
from rllm_core.contracts.loss import LossInput
from rllm_core.updates.losses import ppo


def of_ratio(ratio: float, advantage: float, params: PpoParams) -> tuple[float, float]:
    logprobs = torch.tensor([math.log(ratio) - 1], dtype=torch.float64, requires_grad=True)
    inputs = LossInput(
        logprobs=logprobs,
        old_logprobs=torch.tensor([-1.0], dtype=torch.float64),
        advantages=torch.tensor([advantage], dtype=torch.float64),
        row_ids=torch.tensor([0]),
    )
    loss = ppo(inputs, params)
    loss.sum().backward()
    assert logprobs.grad is not None
    return loss.item(), logprobs.grad.item()


def test_it_is_off_by_default() -> None:
    assert PpoParams().clip_ratio_c is None
    assert of_ratio(9.0, -1.0, PpoParams()) == pytest.approx((9.0, 9.0))


def test_a_bad_token_that_has_become_far_likelier_counts_no_more_than_c_times() -> None:
    assert of_ratio(9.0, -1.0, PpoParams(clip_ratio_c=3.0)) == pytest.approx((3.0, 0.0))
    assert of_ratio(9.0, -2.0, PpoParams(clip_ratio_c=3.0)) == pytest.approx((6.0, 0.0))
    assert of_ratio(2.5, -1.0, PpoParams(clip_ratio_c=3.0)) == pytest.approx((2.5, 2.5))


@pytest.mark.parametrize("ratio", [0.1, 0.9, 1.0, 1.1, 9.0])
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
def test_elsewhere_it_changes_nothing(ratio: float, advantage: float) -> None:
    if advantage < 0 and ratio > 3:
        return
    assert of_ratio(ratio, advantage, PpoParams(clip_ratio_c=3.0)) == of_ratio(ratio, advantage, PpoParams())


@pytest.mark.parametrize("bound", [1.0, 0.5, 0.0, -3.0])
def test_a_bound_below_the_clip_is_refused(bound: float) -> None:
    with pytest.raises(ValidationError):
        PpoParams(clip_ratio_c=bound)
