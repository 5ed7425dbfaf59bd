"""The share of clipped tokens of an update: only of losses that clip, and only from one bool per token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from expecting import expect_error

from rllm_backend_kit.update_metrics import Means, note_clipping
from rllm_core.builtin import rllm_losses
from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.loss import LossInput, LossPlugin
from rllm_core.data.batch import build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.errors import LossError

RECORDS = {record.name: record for record in rllm_losses()}


def share(**losses: Any) -> dict[str, float]:
    """Return the metrics of two tokens with the ratios 1.5 and 0.5 for each of these roles, as two micro-batches."""
    trajectories = [Trajectory(role, reward=0.0) for role in losses]
    for trajectory in trajectories:
        trajectory.add_step([1], [2], np.zeros(1, np.float32))
    batch = build_batch([TrajectoryGroup(group_id=f"t:{each.name}", trajectories=[each]) for each in trajectories])
    chosen = {
        role: PluginChoice(
            registered=Registered(distribution="mine", version="1", plugin=record), params=record.params()
        )
        for role, record in losses.items()
    }
    plan = UpdatePlan(global_step=0, losses=chosen, aggregation="token-mean", entropy_coeff=0.0, seed=0)
    means = Means()
    for ratio in (1.5, 0.5):
        n, old = len(losses), torch.full((len(losses),), -2.0)
        logprobs = (old + np.log(ratio)).requires_grad_()
        columns = {"advantages": torch.ones(n), "row_ids": torch.arange(n)}
        inputs = LossInput(logprobs=logprobs, old_logprobs=old, **columns)
        note_clipping(means, batch, inputs, plan)
    return means.metrics()


def test_only_tokens_of_losses_that_clip_are_counted() -> None:
    assert share(agent=RECORDS["reinforce"]) == {}
    assert share(solver=RECORDS["importance_sampling"], judge=RECORDS["ppo"]) == {"actor/clip_fraction": 0.5}


@pytest.mark.parametrize("counted", [lambda inputs, params: 0.5, lambda inputs, params: inputs.logprobs])
def test_clipped_count_without_bools_fails_the_update(counted: Any) -> None:
    mine = LossPlugin(name="mine", summary="", load=lambda: counted, load_clipped=lambda: counted)
    with expect_error(LossError, "bad-loss-result", "`load_clipped`", "'mine'", "'agent'", "bool"):
        share(agent=mine)
