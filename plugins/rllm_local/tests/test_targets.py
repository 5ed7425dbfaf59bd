"""Updates with target distributions against a naive reference. The policy's part of the gradient stays the same."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from close import assert_close
from local_models import build_tiny, gradient_of, make_plan, make_updater, random_batch

from rllm_core.data.batch import TokenBatch, TokenTargets
from rllm_core.data.record import TokenTrace
from rllm_core.errors import LossError
from rllm_local import vocabulary
from rllm_local.columns import ColumnFiller

TURNS = [[(5, 3), (2, 4)], [(1, 1), (9, 2)], [(30, 12), (1, 1), (4, 6)], [(8, 25)]]
WEIGHT = 0.5


def with_targets(batch: TokenBatch, k: int | None, beta: float) -> TokenBatch:
    """The batch with the likeliest tokens of a second model."""
    filler = ColumnFiller(build_tiny(1), temperature=1.0, max_tokens_per_microbatch=60, recompute_old_logprobs=False)
    ids, logprobs = filler.top_logprobs(batch, k)
    return replace(batch, targets=TokenTargets(ids=ids, logprobs=logprobs, weight=WEIGHT, beta=beta))


def updated(model: Any, batch: TokenBatch, micro_batch_tokens: int = 2048, **changes: Any) -> tuple[Any, torch.Tensor]:
    """The result of an update of a copy, and its gradient."""
    model = copy.deepcopy(model)
    settings = {"max_tokens_per_microbatch": micro_batch_tokens, "learning_rate": 1e-12, "max_grad_norm": 1e9}
    result = make_updater(model, **settings).update(batch, make_plan(**changes))
    return result, gradient_of(model)


def log_distributions(model: Any, batch: TokenBatch) -> torch.Tensor:
    """(n_sampled, n_vocabulary) of each sampled token, row by row."""
    found = []
    for start, end in zip(batch.row_offsets, batch.row_offsets[1:], strict=False):
        tokens = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
        logits = model(input_ids=tokens[None], use_cache=False).logits[0, :-1]
        found.append(torch.log_softmax(logits, -1)[torch.from_numpy(batch.loss_mask[start + 1 : end])])
    return torch.cat(found)


def expected_loss(model: Any, batch: TokenBatch, k: int | None, beta: float) -> torch.Tensor:
    """The mean divergence in float64, with probabilities instead of log-probs."""
    with torch.no_grad():
        target = log_distributions(build_tiny(1), batch).double().exp()
    policy = log_distributions(model, batch).double().exp()
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
@pytest.mark.parametrize(("k", "beta"), [(None, 0.0), (8, 0.0), (8, 1.0), (8, 0.3)])
def test_gradient_is_the_sum_of_both_gradients(
    k: int | None, beta: float, logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "CHUNK", logits)
    model, batch = build_tiny(0), random_batch(TURNS)
    plain, policy = updated(model, batch)
    both, total = updated(model, with_targets(batch, k, beta))
    loss = expected_loss(model, batch, k, beta)
    (WEIGHT * loss).backward()
    assert_close(total - policy, gradient_of(model), [total, policy], relative=5e-6)
    assert both.metrics["actor/target_divergence"] == pytest.approx(loss.item(), rel=0, abs=1e-6)
    assert both.metrics["actor/loss"] == pytest.approx(plain.metrics["actor/loss"], rel=0, abs=1e-7)


def test_micro_batches_do_not_change_the_gradient() -> None:
    model, batch = build_tiny(0), with_targets(random_batch(TURNS), 8, 0.5)
    whole, parts = (updated(model, batch, tokens)[1] for tokens in (2048, 40))
    assert_close(parts, whole, [whole], relative=5e-6)


def test_observations_and_targets_add_up() -> None:
    model, batch = build_tiny(0), random_batch(TURNS)
    weights = np.where(batch.loss_mask, 0, 0.5).astype(np.float32)
    weights[batch.row_offsets[:-1]] = 0
    observed = batch.with_columns(observation_weights=weights)
    gradients = [
        updated(model, each)[1]
        for each in (batch, observed, with_targets(batch, 8, 0.5), with_targets(observed, 8, 0.5))
    ]
    assert_close(gradients[3], gradients[1] + gradients[2] - gradients[0], gradients[:3], relative=5e-6)


@pytest.mark.parametrize("loss", ["ppo", "reinforce"])
def test_policy_part_of_each_token_is_bit_equal(loss: str) -> None:
    model, batch = build_tiny(0), random_batch(TURNS)
    batches = (batch, with_targets(batch, 8, 0.5))
    traces = [updated(model, each, losses=loss, trace=True)[0].trace for each in batches]
    plain, with_distributions = (trace for trace in traces if isinstance(trace, TokenTrace))
    for name, values in vars(plain).items():
        np.testing.assert_array_equal(values, getattr(with_distributions, name), err_msg=name)


def test_target_beyond_the_vocabulary_is_an_error() -> None:
    batch = with_targets(random_batch(TURNS), 2, 0.5)
    assert batch.targets is not None
    batch.targets.ids[0, 0] = 10**6
    with pytest.raises(LossError) as caught:
        updated(build_tiny(0), batch)
    assert caught.value.code == "target-beyond-vocabulary"
