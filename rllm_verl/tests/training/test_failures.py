"""What goes wrong in a worker reaches the driver as an error that says where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from expecting import expect_error

from rllm_core.errors import BackendError, LossError

from .conftest import make_plan, make_updater, random_batch

TURNS = [[(5, 3)], [(2, 4)], [(1, 1)]]


@pytest.fixture
def update(one_rank: Any) -> Callable[..., dict[str, float]]:
    """An update in which the second of two roles has the loss of this name."""

    def run(name: str, group: Any = one_rank) -> dict[str, float]:
        batch = random_batch(TURNS, roles=("solver", "judge"))
        plan = make_plan({"solver": "ppo", "judge": name})
        return make_updater().update(group.restart(rows=1), batch, plan).metrics

    return run


def _raises(inputs: Any, params: Any) -> torch.Tensor:
    raise ZeroDivisionError("by nought")


def _mean(inputs: Any, params: Any) -> torch.Tensor:
    return inputs.logprobs.mean()


def _nan(inputs: Any, params: Any) -> torch.Tensor:
    return inputs.logprobs * float("nan")


def _constant(inputs: Any, params: Any) -> torch.Tensor:
    return inputs.advantages


@pytest.mark.parametrize(
    ("loss", "code", "value"),
    [
        (_raises, "plugin-failed", "ZeroDivisionError: by nought"),
        (_mean, "bad-loss-result", "token"),
        (_nan, "loss-not-finite", "NaN"),
        (_constant, "loss-without-gradient", "log-probs"),
    ],
)
def test_failed_loss_is_named_with_role(
    loss: Any,
    code: str,
    value: str,
    update: Callable[..., dict[str, float]],
    register_loss: Callable[[str, Any], None],
    one_rank: Any,
) -> None:
    register_loss(loss.__name__[1:], loss)
    before = one_rank.restart(rows=1).weights()
    with expect_error(LossError, code, repr(loss.__name__[1:]), "role 'judge'", value) as raised:
        update(loss.__name__[1:])
    assert "In a worker" in raised.value.__notes__[0]
    assert torch.equal(one_rank.weights(), before)


@pytest.mark.long
def test_a_group_works_after_a_failed_loss(
    update: Callable[..., dict[str, float]], register_loss: Callable[[str, Any], None], two_ranks: Any
) -> None:
    register_loss("here_only", _raises)
    with expect_error(LossError, "plugin-of-other-program", "here_only"):
        update("here_only", two_ranks)
    assert update("ppo", two_ranks)["actor/grad_norm"] > 0


def test_update_huge_advantages_are_named_with_reward(one_rank: Any) -> None:
    batch = random_batch(TURNS)
    huge = batch.with_columns(advantages=np.where(batch.loss_mask, 1e22, 0).astype(np.float32))
    with expect_error(BackendError, "gradient-not-finite", "advantages", "float32", "1e+22", "reward"):
        make_updater().update(one_rank.restart(rows=1), huge, make_plan())


def test_gradient_not_finite_fails_before_changing_weights(
    update: Callable[..., dict[str, float]], register_loss: Callable[[str, Any], None], one_rank: Any
) -> None:
    def steep(inputs: Any, params: Any) -> torch.Tensor:
        return inputs.logprobs * 1e37

    register_loss("steep", steep)
    before = one_rank.restart(rows=1).weights()
    with pytest.raises(BackendError, match="gradient of step 0 is not finite"):
        update("steep")
    assert torch.equal(one_rank.weights(), before)
