"""Updates with observation weights against a naive reference. The policy's part of the gradient stays the same."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from close import assert_close
from local_models import build_tiny, gradient_of, make_plan, make_updater, random_batch

from rllm_core.data.batch import TokenBatch
from rllm_core.data.record import TokenTrace
from rllm_local import vocabulary

TURNS = [[(5, 3), (2, 4)], [(1, 1), (9, 2)], [(30, 12), (1, 1), (4, 6)], [(8, 25)]]


def observed(batch: TokenBatch, weight: float = 0.5) -> TokenBatch:
    """The batch with weights for all tokens between two responses."""
    weights = np.zeros(len(batch.tokens), np.float32)
    for start, end in zip(batch.row_offsets, batch.row_offsets[1:], strict=False):
        first = start + int(batch.loss_mask[start:end].argmax())
        weights[first:end] = np.where(batch.loss_mask[first:end], 0, weight)
    return batch.with_columns(observation_weights=weights)


def updated(model: Any, batch: TokenBatch, micro_batch_tokens: int = 2048, **changes: Any) -> tuple[Any, torch.Tensor]:
    """The result of an update of a copy, and its gradient."""
    model = copy.deepcopy(model)
    settings = {"max_tokens_per_microbatch": micro_batch_tokens, "learning_rate": 1e-12, "max_grad_norm": 1e9}
    result = make_updater(model, **settings).update(batch, make_plan(**changes))
    return result, gradient_of(model)


def expected_loss(model: Any, batch: TokenBatch) -> torch.Tensor:
    """Mean of -log p over the observations, row by row, times the weight."""
    assert batch.observation_weights is not None
    losses = []
    for start, end in zip(batch.row_offsets, batch.row_offsets[1:], strict=False):
        tokens = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
        logprobs = torch.log_softmax(model(input_ids=tokens[None], use_cache=False).logits[0, :-1], -1)
        picked = logprobs.gather(1, tokens[1:, None])[:, 0]
        losses.append(-picked[torch.from_numpy(batch.observation_weights[start:end][1:] > 0)])
    return 0.5 * torch.cat(losses).mean()


@pytest.mark.parametrize("micro_batch_tokens", [40, 2048])
@pytest.mark.parametrize("logits", [700, vocabulary.CHUNK], ids=["logits in chunks", "all logits"])
def test_gradient_is_the_sum_of_both_gradients(
    micro_batch_tokens: int, logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "CHUNK", logits)
    model, batch = build_tiny(0), random_batch(TURNS)
    plain, policy = updated(model, batch, micro_batch_tokens)
    both, total = updated(model, observed(batch), micro_batch_tokens)
    loss = expected_loss(model, observed(batch))
    loss.backward()
    assert_close(total - policy, gradient_of(model), [total, policy], relative=5e-6)
    assert both.metrics["actor/observation_loss"] == pytest.approx(2 * loss.item(), rel=1e-6)
    assert both.metrics["actor/loss"] == pytest.approx(plain.metrics["actor/loss"], rel=0, abs=1e-7)


@pytest.mark.parametrize("loss", ["ppo", "reinforce"])
def test_policy_part_of_each_token_is_equal(loss: str) -> None:
    model, batch = build_tiny(0), random_batch(TURNS)
    traces = [updated(model, each, losses=loss, trace=True)[0].trace for each in (batch, observed(batch))]
    plain, with_observations = (trace for trace in traces if isinstance(trace, TokenTrace))
    for name, values in vars(plain).items():
        assert_close(getattr(with_observations, name), values, [values])


def test_batch_without_observations_changes_nothing() -> None:
    model, batch = build_tiny(0), random_batch(TURNS)
    without = batch.with_columns(observation_weights=np.zeros(len(batch.tokens), np.float32))
    assert torch.equal(updated(model, batch)[1], updated(model, without)[1])


def test_divisor_counts_the_optimizer_step() -> None:
    """With two minibatches, each is divided by its own number of observations, as the policy's tokens are."""
    model, batch = build_tiny(0), observed(random_batch(TURNS))
    settings = {"learning_rate": 1e-12, "max_grad_norm": 1e9, "num_minibatches": 2}
    gradients = []
    for tokens in (40, 2048):
        other = copy.deepcopy(model)
        make_updater(other, max_tokens_per_microbatch=tokens, **settings).update(batch, make_plan())
        gradients.append(gradient_of(other))
    assert_close(*gradients, gradients[:1], relative=5e-6)
