"""Updates with observation weights or target distributions against a naive reference.

The policy's part of the gradient stays the same.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from close import assert_close
from local_models import build_tiny, gradient_of, make_plan, make_updater, plain_rows, random_batch

from rllm_core.data.batch import TokenBatch, TokenTargets
from rllm_core.errors import LossError
from rllm_local import vocabulary
from rllm_local.columns import ColumnFiller

TURNS = [[(5, 3), (2, 4)], [(1, 1), (9, 2)], [(30, 12), (1, 1), (4, 6)], [(8, 25)]]


def add_observations(batch: TokenBatch, weight: float = 0.5) -> TokenBatch:
    """The batch with weights for all tokens between two responses."""
    weights = np.zeros(len(batch.tokens), np.float32)
    for start, end in zip(batch.row_offsets, batch.row_offsets[1:], strict=False):
        first = start + int(batch.loss_mask[start:end].argmax())
        weights[first:end] = np.where(batch.loss_mask[first:end], 0, weight)
    return batch.with_columns(observation_weights=weights)


def with_targets(batch: TokenBatch, k: int | None = 8, beta: float = 0.5) -> TokenBatch:
    """The batch with the likeliest tokens of a second model."""
    filler = ColumnFiller(build_tiny(1), temperature=1.0, max_tokens_per_microbatch=60, recompute_old_logprobs=False)
    ids, logprobs = filler.top_logprobs(batch, k)
    return replace(batch, targets=TokenTargets(ids=ids, logprobs=logprobs, weight=0.5, beta=beta))


def update_weights(
    model: Any, batch: TokenBatch, micro_batch_tokens: int = 2048, minibatches: int = 1, **changes: Any
) -> tuple[Any, torch.Tensor]:
    """The result of an update of a copy, and its gradient."""
    model = copy.deepcopy(model)
    settings = {"max_tokens_per_microbatch": micro_batch_tokens, "num_minibatches": minibatches}
    updater = make_updater(model, learning_rate=1e-12, max_grad_norm=1e9, **settings)
    return updater.update(batch, make_plan(**changes)), gradient_of(model)


def observation_loss(model: Any, batch: TokenBatch) -> torch.Tensor:
    """Mean of -log p over the observations."""
    assert batch.observation_weights is not None
    rows = plain_rows(model, batch)
    return -torch.cat([logprobs[batch.observation_weights[place] > 0] for place, _, logprobs, _ in rows]).mean()


def divergence(model: Any, batch: TokenBatch, k: int | None, beta: float) -> torch.Tensor:
    """The mean divergence in float64, with probabilities instead of log-probs."""
    target, policy = (
        torch.cat([table[batch.loss_mask[place]] for place, table, *_ in plain_rows(each, batch)]).double().exp()
        for each in (build_tiny(1).requires_grad_(False), model)
    )
    if k is not None:
        ids = target.topk(k).indices
        target, policy = target.gather(1, ids), policy.gather(1, ids)
        target, policy = (torch.cat((each, 1 - each.sum(1, keepdim=True)), 1) for each in (target, policy))
    if beta in (0, 1):
        left, right = (target, policy) if beta == 0 else (policy, target)
        return (left * (left / right).log()).sum(1).mean()
    mixture = beta * target + (1 - beta) * policy
    parts = ((each * (each / mixture).log()).sum(1).mean() for each in (target, policy))
    return sum(share * part for share, part in zip((beta, 1 - beta), parts, strict=True))


@pytest.mark.parametrize("logits", [700, vocabulary.CHUNK], ids=["logits in chunks", "all logits"])
@pytest.mark.parametrize("target", ["observations", (None, 0.0), (8, 0.0), (8, 1.0), (8, 0.3)], ids=str)
def test_gradient_is_the_sum_of_both_gradients(target: Any, logits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "CHUNK", logits)
    model, batch = build_tiny(0), random_batch(TURNS)
    plain, policy = update_weights(model, batch)
    other = add_observations(batch) if target == "observations" else with_targets(batch, *target)
    both, total = update_weights(model, other)
    loss = observation_loss(model, other) if target == "observations" else divergence(model, other, *target)
    (0.5 * loss).backward()
    assert_close(total - policy, gradient_of(model), [total, policy], relative=5e-6)
    if target == "observations":
        assert both.metrics["actor/observation_loss"] == pytest.approx(loss.item(), rel=1e-6)
    else:
        assert both.metrics["actor/target_divergence"] == pytest.approx(loss.item(), rel=0, abs=1e-6)
    assert both.metrics["actor/loss"] == pytest.approx(plain.metrics["actor/loss"], rel=0, abs=1e-7)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_micro_batches_do_not_change_the_gradient(minibatches: int) -> None:
    """Each of two minibatches is divided by its own number of observations, as the policy's tokens are."""
    model, batch = build_tiny(0), random_batch(TURNS)
    for changed in (add_observations(batch), with_targets(batch)):
        whole, parts = (update_weights(model, changed, tokens, minibatches)[1] for tokens in (2048, 40))
        assert_close(parts, whole, [whole], relative=5e-6)


def test_observations_and_targets_add_up() -> None:
    model, batch = build_tiny(0), random_batch(TURNS)
    batches = (batch, add_observations(batch), with_targets(batch), with_targets(add_observations(batch)))
    gradients = [update_weights(model, each)[1] for each in batches]
    assert_close(gradients[3], gradients[1] + gradients[2] - gradients[0], gradients[:3], relative=5e-6)
    nothing = batch.with_columns(observation_weights=np.zeros(len(batch.tokens), np.float32))
    assert torch.equal(gradients[0], update_weights(model, nothing)[1])


@pytest.mark.parametrize("loss", ["ppo", "reinforce"])
def test_policy_part_of_each_token_is_equal(loss: str) -> None:
    model, batch = build_tiny(0), random_batch(TURNS)
    plain, of_observations, of_targets = (
        update_weights(model, each, losses=loss, trace=True)[0].trace
        for each in (batch, add_observations(batch), with_targets(batch))
    )
    for name, values in vars(plain).items():
        assert_close(getattr(of_observations, name), values, [values])
        np.testing.assert_array_equal(getattr(of_targets, name), values, err_msg=name)


def test_target_beyond_the_vocabulary_is_an_error() -> None:
    batch = with_targets(random_batch(TURNS), 2)
    assert batch.targets is not None
    batch.targets.ids[0, 0] = 10**6
    with pytest.raises(LossError) as caught:
        update_weights(build_tiny(0), batch)
    assert caught.value.code == "target-beyond-vocabulary"
