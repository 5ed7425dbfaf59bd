"""The share of clipped tokens of an update: by role, over micro-batches, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from expecting import expect_error
from torch import Tensor

from rllm_backend_kit.update_metrics import Means, note_clipping
from rllm_core.builtin import rllm_losses
from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.loss import LossInput, LossPlugin
from rllm_core.contracts.plugin import NoParams
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.errors import LossError

RATIOS = [1.0, 1.5, 0.5, 1.5, 0.5, 4.0, 1.5, 0.9]
ADVANTAGES = [1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 0.0, -2.0]
RECORDS = {record.name: record for record in rllm_losses()}


def inputs_of(ratios: Sequence[float], advantages: Sequence[float], rows: Sequence[int]) -> LossInput:
    logprobs = torch.tensor([math.log(ratio) - 2 for ratio in ratios], requires_grad=True)
    return LossInput(
        logprobs=logprobs,
        old_logprobs=torch.full((len(ratios),), -2.0),
        advantages=torch.tensor(advantages),
        row_ids=torch.tensor(rows),
    )


def rows_of(*roles: str) -> TokenBatch:
    """A batch with a row of each of these roles."""
    trajectories = [Trajectory(role, reward=0.0) for role in roles]
    for trajectory in trajectories:
        trajectory.add_step([1], [2], np.zeros(1, np.float32))
    return build_batch([TrajectoryGroup(group_id=f"task:{each.name}", trajectories=[each]) for each in trajectories])


def plan_of(**losses: Any) -> UpdatePlan:
    chosen = {
        role: PluginChoice(
            registered=Registered(distribution="mine", version="1", plugin=record), params=record.params()
        )
        for role, record in losses.items()
    }
    return UpdatePlan(global_step=0, losses=chosen, aggregation="token-mean", entropy_coeff=0.0, seed=0)


def share(rows: TokenBatch, plan: UpdatePlan, *parts: LossInput) -> dict[str, float]:
    means = Means()
    for part in parts:
        note_clipping(means, rows, part, plan)
    return means.metrics()


@pytest.mark.parametrize("first", [1, 3, 7])
def test_micro_batches_count_by_their_tokens(first: int) -> None:
    cut = [slice(0, first), slice(first, 8)]
    parts = [inputs_of(RATIOS[part], ADVANTAGES[part], [0] * len(RATIOS[part])) for part in cut]
    found = share(rows_of("agent"), plan_of(agent=RECORDS["ppo"]), *parts)
    assert found == {"actor/clip_fraction": pytest.approx(2 / 8)}


def test_only_tokens_of_losses_that_clip_are_counted() -> None:
    inputs = inputs_of([1.5, 1.5, 1.0], [1.0, 1.0, 1.0], [0, 1, 1])
    plan = plan_of(solver=RECORDS["importance_sampling"], judge=RECORDS["ppo"])
    assert share(rows_of("solver", "judge"), plan, inputs) == {"actor/clip_fraction": 0.5}


def test_a_loss_that_never_clips_has_no_share() -> None:
    plan = plan_of(agent=RECORDS["reinforce"])
    assert share(rows_of("agent"), plan, inputs_of([1.5], [1.0], [0])) == {}


@pytest.mark.parametrize("counted", [lambda inputs, params: 0.5, lambda inputs, params: inputs.logprobs])
def test_a_count_that_is_no_bool_for_each_token_ends_the_update(counted: Callable[..., Tensor]) -> None:
    mine = LossPlugin(name="mine", summary="", params=NoParams, load=lambda: counted, load_clipped=lambda: counted)
    with expect_error(LossError, "bad-loss-result", "`load_clipped`", "'mine'", "'agent'", "bool"):
        share(rows_of("agent"), plan_of(agent=mine), inputs_of([1.5], [1.0], [0]))
