"""What holds of every loss: rows are strangers to each other, extremes stay finite, nothing is left to chance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from rllm_core.contracts.loss import LossInput
from rllm_core.updates.aggregation import token_weights
from rllm_estimators.loss_options import ClipCovParams, KlCovParams
from rllm_estimators.plugin import rllm_losses

LOSSES: dict[str, Any] = {record.name: record.load() for record in rllm_losses()}
OPTIONS: dict[str, Any] = {record.name: record.params() for record in rllm_losses()} | {
    # Some tokens of each row, chosen at random.
    "kl_cov": KlCovParams(kl_cov_ratio=0.3),
    "clip_cov": ClipCovParams(clip_cov_ratio=0.3, clip_cov_lb=0.0, clip_cov_ub=9.0),
}
AGGREGATIONS = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]

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
        sampling_logprobs=old + 0.01 * torch.randn(total, generator=generator),
        advantages=torch.repeat_interleave(torch.randn(count, generator=generator), lengths),
        row_ids=torch.repeat_interleave(ids, lengths),
        seed=seed,
    )


def only(inputs: LossInput, ids: list[int]) -> LossInput:
    """Those rows, in that order."""
    order = torch.cat([torch.nonzero(inputs.row_ids == row)[:, 0] for row in ids])
    return inputs.at(order)


def gradient(name: str, inputs: LossInput, weights: Tensor | float = 1.0) -> Tensor:
    logprobs = inputs.logprobs.clone().requires_grad_()
    (LOSSES[name](replace(inputs, logprobs=logprobs), OPTIONS[name]) * weights).sum().backward()
    assert logprobs.grad is not None
    return logprobs.grad


def rows_of(inputs: LossInput) -> list[int]:
    ids: list[int] = inputs.row_ids.unique_consecutive().tolist()
    return ids


@names
@given(seed=st.integers(0, 10**6), data=st.data(), aggregation=st.sampled_from(AGGREGATIONS))
@settings(deadline=None, max_examples=40)
def test_micro_batches_do_not_change_the_gradient(name: str, seed: int, data: st.DataObject, aggregation: str) -> None:
    inputs = some_rows(seed)
    ids = rows_of(inputs)
    lengths = np.array([int((inputs.row_ids == row).sum()) for row in ids])
    weights = torch.from_numpy(token_weights(aggregation, lengths, 50))
    whole = gradient(name, inputs, weights)
    order = data.draw(st.permutations(ids))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(ids) - 1))))
    cut_up = torch.full_like(whole, torch.nan)
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        places = torch.cat([torch.nonzero(inputs.row_ids == row)[:, 0] for row in order[start:end]])
        cut_up[places] = gradient(name, inputs.at(places), weights[places])
    torch.testing.assert_close(cut_up, whole, rtol=1e-6, atol=1e-7)


@names
@given(seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=20)
def test_a_row_has_the_loss_it_would_have_alone(name: str, seed: int) -> None:
    inputs = some_rows(seed)
    together = LOSSES[name](inputs, OPTIONS[name])
    alone = [LOSSES[name](only(inputs, [row]), OPTIONS[name]) for row in rows_of(inputs)]
    torch.testing.assert_close(torch.cat(alone), together, rtol=1e-6, atol=1e-7)


@names
def test_a_loss_is_one_float32_per_token_and_the_same_every_time(name: str) -> None:
    inputs = some_rows(3)
    generator_state = torch.get_rng_state()
    losses = LOSSES[name](inputs, OPTIONS[name])
    assert losses.shape == inputs.logprobs.shape
    assert losses.dtype == torch.float32
    assert torch.equal(losses, LOSSES[name](inputs, OPTIONS[name]))
    assert torch.equal(gradient(name, inputs), gradient(name, inputs))
    assert torch.equal(torch.get_rng_state(), generator_state), "the global random state is the caller's"


@names
def test_inputs_are_left_as_they_were(name: str) -> None:
    inputs = some_rows(5)
    before = {key: value.clone() for key, value in vars(inputs).items() if isinstance(value, Tensor)}
    gradient(name, inputs)
    assert all(torch.equal(value, getattr(inputs, key)) for key, value in before.items())


@names
def test_no_tokens_have_no_loss(name: str) -> None:
    nothing = some_rows(0).at(torch.zeros(0, dtype=torch.int64))
    assert LOSSES[name](nothing, OPTIONS[name]).shape == (0,)


@names
@pytest.mark.parametrize("advantage", [2.0, -2.0, 0.0])
@pytest.mark.parametrize("log_ratio", [1e3, -1e3])
@pytest.mark.parametrize("all_of_them", [True, False])
def test_extreme_ratios_stay_finite(name: str, advantage: float, log_ratio: float, all_of_them: bool) -> None:
    logprobs = torch.tensor([log_ratio - 1, log_ratio - 1 if all_of_them else -1.5, -2.0])
    inputs = LossInput(
        logprobs=logprobs,
        old_logprobs=torch.tensor([-1.0, -1.0, -2.0]),
        advantages=torch.full((3,), advantage),
        row_ids=torch.tensor([0, 0, 1]),
    )
    assert LOSSES[name](inputs, OPTIONS[name]).isfinite().all()
    assert gradient(name, inputs).isfinite().all()


@names
def test_certain_and_impossible_tokens_stay_finite(name: str) -> None:
    values = torch.tensor([0.0, -90.0, -200.0])
    logprobs, old = torch.cartesian_prod(values, values).T.contiguous()
    for advantage in (1.0, -1.0):
        inputs = LossInput(
            logprobs=logprobs, old_logprobs=old, advantages=torch.full((9,), advantage), row_ids=torch.arange(9) // 2
        )
        assert LOSSES[name](inputs, OPTIONS[name]).isfinite().all()
        assert gradient(name, inputs).isfinite().all()


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"cross_entropy", "dro", "ipo"}))
def test_without_an_advantage_nothing_is_learnt(name: str) -> None:
    inputs = some_rows(7)
    assert (gradient(name, replace(inputs, advantages=torch.zeros_like(inputs.advantages))) == 0).all()


def test_dro_without_an_advantage_goes_back_to_the_old_policy() -> None:
    inputs = some_rows(7)
    found = gradient("dro", replace(inputs, advantages=torch.zeros_like(inputs.advantages)))
    torch.testing.assert_close(found, OPTIONS["dro"].beta * (inputs.logprobs - inputs.old_logprobs))
