"""The core's policy losses: their formulas, where they clip, their gradients, and that they stay finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from expecting import expect_error
from hypothesis import given, strategies as st
from pydantic import ValidationError
from torch import Tensor

from rllm_core.algorithms.options import PpoParams
from rllm_core.contracts import LossInput, NoParams
from rllm_core.errors import LossError
from rllm_core.updates.losses import MAX_LOG_RATIO, check_token_losses, importance_sampling, ppo, ppo_clipped, reinforce

Loss = Callable[[LossInput], Tensor]

LOSSES: dict[str, Loss] = {
    "ppo": lambda inputs: ppo(inputs, PpoParams()),
    "ppo high": lambda inputs: ppo(inputs, PpoParams(eps_clip=0.1, eps_clip_high=0.4)),
    "importance_sampling": lambda inputs: importance_sampling(inputs, NoParams()),
    "reinforce": lambda inputs: reinforce(inputs, NoParams()),
}


def _inputs(logprobs: list[float] | Tensor, old: list[float], advantages: list[float]) -> LossInput:
    if not isinstance(logprobs, Tensor):
        logprobs = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    return LossInput(
        logprobs=logprobs,
        old_logprobs=torch.tensor(old, dtype=torch.float64),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        row_ids=torch.arange(len(old)) // 2,
    )


def _of_ratio(ratio: float, advantage: float, params: PpoParams) -> tuple[float, float]:
    """PPO's loss of one token, and its gradient by the log-prob."""
    inputs = _inputs([math.log(ratio) - 1.0], [-1.0], [advantage])
    loss = ppo(inputs, params)
    loss.sum().backward()
    assert inputs.logprobs.grad is not None
    return loss.item(), inputs.logprobs.grad.item()


tokens = st.lists(st.tuples(st.floats(-8, -0.01), st.floats(-8, -0.01), st.floats(-3, 3)), min_size=1, max_size=8)


@given(tokens)
def test_losses_are_their_formulas(columns: list[tuple[float, float, float]]) -> None:
    inputs = _inputs(*(list(column) for column in zip(*columns, strict=True)))
    clipped, high, unclipped, plain = (LOSSES[name](inputs).tolist() for name in LOSSES)
    for index, (logprob, old, advantage) in enumerate(columns):
        ratio = math.exp(logprob - old)
        assert plain[index] == pytest.approx(-advantage * logprob)
        assert unclipped[index] == pytest.approx(-advantage * ratio)
        surrogates = (advantage * ratio, advantage * min(max(ratio, 0.8), 1.2))
        assert clipped[index] == pytest.approx(-min(surrogates))
        surrogates = (advantage * ratio, advantage * min(max(ratio, 0.9), 1.4))
        assert high[index] == pytest.approx(-min(surrogates))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.4, 0.0),  # good and already likelier: held back
        (0.5, 2.0, -1.0, -1.0),  # good and less likely: brought back
        (1.0, -2.0, 2.0, 2.0),
        (0.9, -2.0, 1.8, 1.8),
        (0.5, -2.0, 1.6, 0.0),  # bad and already less likely: held back
        (1.5, -2.0, 3.0, 3.0),  # bad and likelier: brought back
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_ppo_clips_only_on_one_side(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    assert _of_ratio(ratio, advantage, PpoParams(eps_clip=0.2)) == pytest.approx((loss, gradient))


def test_huge_ratios_stay_finite() -> None:
    for log_ratio in (100.0, 1e4, -100.0, -1e4):
        for advantage in (1.0, -1.0, 0.0):
            for name in LOSSES:
                logprobs = torch.tensor([log_ratio - 5.0], dtype=torch.float32, requires_grad=True)
                inputs = LossInput(
                    logprobs=logprobs,
                    old_logprobs=torch.tensor([-5.0]),
                    advantages=torch.tensor([advantage]),
                    row_ids=torch.tensor([0]),
                )
                loss = LOSSES[name](inputs)
                loss.sum().backward()
                assert loss.isfinite().all()
                assert logprobs.grad is not None
                assert logprobs.grad.isfinite().all()
                if name != "reinforce":
                    assert abs(loss.item()) <= math.exp(MAX_LOG_RATIO) * 1.001


@pytest.mark.parametrize("name", LOSSES)
def test_one_finite_number_per_token_passes_unchanged(name: str) -> None:
    inputs = _inputs([-1.0, -2.0, -3.0], [-1.1, -2.0, -2.5], [1.0, -1.0, 0.5])
    losses = LOSSES[name](inputs)
    assert check_token_losses(losses, inputs, "loss 'mine'") is losses
    nothing = _inputs([], [], [])
    assert check_token_losses(LOSSES[name](nothing), nothing, "loss 'mine'").shape == (0,)


@pytest.mark.parametrize(
    ("result", "code", "values"),
    [
        (torch.tensor(0.5), "bad-loss-result", ["shape ()", "(3,)", "rllm.algorithm.loss_agg_mode"]),
        (torch.zeros(1), "bad-loss-result", ["shape (1,)"]),
        (torch.zeros(3, 1), "bad-loss-result", ["shape (3, 1)"]),
        (torch.zeros(4), "bad-loss-result", ["shape (4,)"]),
        (0.5, "bad-loss-result", ["float"]),
        ([0.0, 0.0, 0.0], "bad-loss-result", ["list"]),
        (None, "bad-loss-result", ["NoneType"]),
        (torch.tensor([math.nan, 0.5, 0.5]), "loss-not-finite", [1]),
        (torch.tensor([math.inf, -math.inf, 0.5]), "loss-not-finite", [2]),
        (torch.tensor([0.5, math.nan, math.inf]), "loss-not-finite", [2]),
        (torch.tensor([1.0, 1.0, 1.0]), "loss-without-gradient", []),
    ],
    ids=str,
)
def test_unusable_loss_is_an_error_with_its_name(result: object, code: str, values: list[object]) -> None:
    inputs = _inputs([-1.0, -2.0, -3.0], [-1.0] * 3, [1.0] * 3)
    assert inputs.logprobs.requires_grad
    with expect_error(LossError, code, "'mine'", "'agent'", *values):
        check_token_losses(result, inputs, "loss 'mine' for role 'agent'")


def test_dual_clip_is_optional_with_bound_above_1() -> None:
    assert PpoParams().clip_ratio_c is None
    for bound in (1.0, 0.5, 0.0, -3.0):
        with pytest.raises(ValidationError):
            PpoParams(clip_ratio_c=bound)


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


def test_ppo_clips_gains_above_and_losses_below_bounds() -> None:
    inputs = inputs_of(RATIOS, ADVANTAGES)
    assert ppo_clipped(inputs, PpoParams()).tolist() == CLIPPED


def test_the_dual_clip_counts_too() -> None:
    inputs = inputs_of([2.9, 3.1, 3.1], [-1.0, -1.0, 0.0])
    assert ppo_clipped(inputs, PpoParams(clip_ratio_c=3.0)).tolist() == [False, True, False]
