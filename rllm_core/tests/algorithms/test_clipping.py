"""Which tokens a loss clips."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from rllm_core.algorithms.loss_plugins import PpoParams
from rllm_core.contracts.loss import LossInput
from rllm_core.updates.losses import ppo_clipped

RATIOS = [1.0, 1.5, 0.5, 1.5, 0.5, 4.0, 1.5, 0.9]
ADVANTAGES = [1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 0.0, -2.0]
CLIPPED = [False, True, False, False, True, False, False, False]


def inputs_of(ratios: Sequence[float], advantages: Sequence[float]) -> LossInput:
    logprobs = torch.tensor([math.log(ratio) - 2 for ratio in ratios], requires_grad=True)
    return LossInput(
        logprobs=logprobs,
        old_logprobs=torch.full((len(ratios),), -2.0),
        advantages=torch.tensor(advantages),
        row_ids=torch.zeros(len(ratios), dtype=torch.int64),
    )


def test_ppo_clips_ratios_above_the_bound_that_gain_and_below_it_that_lose() -> None:
    inputs = inputs_of(RATIOS, ADVANTAGES)
    assert ppo_clipped(inputs, PpoParams()).tolist() == CLIPPED


def test_the_dual_clip_counts_too() -> None:
    inputs = inputs_of([2.9, 3.1, 3.1], [-1.0, -1.0, 0.0])
    assert ppo_clipped(inputs, PpoParams(clip_ratio_c=3.0)).tolist() == [False, True, False]
