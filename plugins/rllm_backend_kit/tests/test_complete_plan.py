"""The numbers of a plan that depend on all tokens of a batch."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch

from rllm_backend_kit.loss import complete_plan, rollout_weights
from rllm_core.contracts.backend import RolloutCorrection, UpdatePlan
from rllm_core.data.batch import TokenBatch


@pytest.mark.parametrize("mode", ["token", "sequence"])
def test_the_mean_of_weights_is_the_whole_batchs(mode: Literal["token", "sequence"]) -> None:
    """Also if a floor and a cap change some of the weights."""
    ratios = np.array([0.5, 0.9, 1.2, 1.1, 1.0, 2.0])
    rows = np.array([0, 0, 1, 2, 2, 2])
    nothing = np.zeros(3, np.int32)
    batch = TokenBatch(
        tokens=rows.astype(np.int32),
        row_offsets=np.array([0, 2, 3, 6]),
        loss_mask=np.ones(6, np.bool_),
        sampling_logprobs=np.full(6, -1.0, np.float32),
        old_logprobs=(np.log(ratios) - 1.0).astype(np.float32),
        trajectory=np.arange(3, dtype=np.int32),
        group=nothing,
        role=nothing,
        weight_version=nothing,
        roles=("agent",),
        groups=(),
    )
    correction = RolloutCorrection(mode=mode, cap=1.15, floor=0.7, beyond_cap="truncate", mean_weight=None)
    plan = UpdatePlan(
        global_step=0, losses={}, aggregation="", entropy_coeff=0.0, seed=0, rollout_correction=correction
    )
    assert batch.old_logprobs is not None
    columns = [torch.from_numpy(each) for each in (batch.old_logprobs, batch.sampling_logprobs, rows)]

    completed = complete_plan(batch, plan).rollout_correction

    assert completed is not None and completed.mean_weight is not None
    torch.testing.assert_close(rollout_weights(*columns, completed), rollout_weights(*columns, correction))
    kept = rollout_weights(*columns, completed) * completed.mean_weight
    assert kept[0] == (0.0 if mode == "token" else kept[1])
