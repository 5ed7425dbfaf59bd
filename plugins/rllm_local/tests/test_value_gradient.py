"""Policy and critic share the model, and neither decides how far the other goes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from expecting import expect_error
from local_models import build_tiny, gradient_of, make_critic, make_plan, make_updater, random_batch, weights_of

from rllm_core.data.batch import TokenBatch
from rllm_core.errors import LossError, RllmError
from rllm_local.critic import Critic

ROWS = [(5, 3), (2, 4), (9, 2), (3, 7), (20, 11), (1, 1)]
LIMIT = 0.01

Update = Callable[..., tuple[Any, Critic, dict[str, float]]]


@pytest.fixture
def update() -> Update:
    """One optimizer step of a new model with a critic: returns both, with the step's gradients, and the metrics."""

    def run(batch: TokenBatch, dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
        model = build_tiny(0).to(dtype)
        critic = make_critic(model)
        return model, critic, make_updater(model, critic=critic, **settings).update(batch, make_plan()).metrics

    return run


def with_returns(batch: TokenBatch, size: float) -> TokenBatch:
    """Returns of plus and minus `size`, where the critic once said 0."""
    returns = np.where(batch.tokens % 2, size, -size).astype(np.float32)
    return batch.with_columns(returns=returns, values=np.zeros_like(returns))


@pytest.mark.parametrize("size", [0.1, 1000.0, 1e6])
def test_policy_update_does_not_depend_on_return_size(size: float, update: Update) -> None:
    """The gradient is the sum of the policy's and the critic's gradients, up to the limit of its norm."""
    batch = random_batch(ROWS)
    policy_only, _, expected = update(batch, max_grad_norm=LIMIT)
    both, critic, metrics = update(with_returns(batch, size), max_grad_norm=LIMIT)
    of_policy = gradient_of(policy_only)
    of_critic = torch.cat([gradient_of(both) - of_policy, gradient_of(critic)])
    assert float(of_policy.norm()) == pytest.approx(LIMIT, rel=1e-4)
    assert float(of_critic.norm()) == pytest.approx(LIMIT, rel=1e-3)
    assert metrics["actor/grad_norm"] == expected["actor/grad_norm"]
    # Norms are reported as they were before scaling. Micro-batches change neither them nor the scaled gradient.
    found = torch.cat([gradient_of(both), gradient_of(critic)])
    model, head, others = update(with_returns(batch, size), max_grad_norm=LIMIT, max_tokens_per_microbatch=1)
    assert float((torch.cat([gradient_of(model), gradient_of(head)]) - found).norm() / found.norm()) < 1e-5
    unscaled = update(with_returns(batch, size), max_grad_norm=1e9)[2]
    for each in (others, unscaled):
        assert each == pytest.approx(metrics, rel=2e-5, abs=2e-6)


def test_gradients_are_clipped_independently_of_each_other(update: Update) -> None:
    batch = random_batch(ROWS)
    policy_only, _, metrics = update(batch)
    limit = 2 * metrics["actor/grad_norm"]
    both, critic, metrics = update(with_returns(batch, 1e4), max_grad_norm=limit)
    of_critic = torch.cat([gradient_of(both) - gradient_of(policy_only), gradient_of(critic)])
    assert metrics["critic/grad_norm"] > 10 * limit
    assert float(of_critic.norm()) == pytest.approx(limit, rel=1e-4)


def test_failed_step_leaves_no_gradient_behind() -> None:
    """The first of two micro-batches is in the gradient already when the loss of the second is refused."""
    batch, gradients = with_returns(random_batch([(1, 2), (20, 30)]), 2.0), []
    for factors in ([1.0, 1.0], [1.0, math.nan, 1.0, 1.0]):
        model = build_tiny(0)
        critic = make_critic(model)
        updater = make_updater(model, critic=critic, max_tokens_per_microbatch=1)
        plan = make_plan({"agent": lambda inputs, params, left=factors: inputs.logprobs * left.pop(0)})
        if len(factors) > 2:
            with pytest.raises(LossError):
                updater.update(batch, plan)
        updater.update(batch, plan)
        gradients.append(torch.cat([gradient_of(model), gradient_of(critic)]))
    assert torch.equal(*gradients)


def test_overflowing_value_loss_fails_before_changing_weights() -> None:
    model = build_tiny(0)
    critic = make_critic(model)
    before = torch.cat([weights_of(model), weights_of(critic)])
    with expect_error(RllmError, "gradient-not-finite", "step 0", "returns", "float32", "-3e+38"):
        make_updater(model, critic=critic).update(with_returns(random_batch(ROWS), 3e38), make_plan())
    assert torch.equal(torch.cat([weights_of(model), weights_of(critic)]), before)


def test_bfloat16_value_gradient_is_accumulated_in_float32(update: Update) -> None:
    batch = with_returns(random_batch(ROWS), 2.0)
    exact, rough = (update(batch, dtype)[2]["critic/grad_norm"] for dtype in (torch.float32, torch.bfloat16))
    assert rough == pytest.approx(exact, rel=0.05)
    model = build_tiny(0).to(torch.bfloat16)
    critic = make_critic(model)
    # Without advantages the gradient is only the critic's.
    batch = batch.with_columns(advantages=np.zeros_like(batch.sampling_logprobs))
    updater = make_updater(model, critic=critic, max_grad_norm=LIMIT, max_tokens_per_microbatch=1)
    metrics = updater.update(batch, make_plan()).metrics
    assert metrics["critic/grad_norm"] > LIMIT
    gradients = [parameter.grad for parameter in (*updater.masters, *critic.parameters())]
    assert {gradient.dtype for gradient in gradients} == {torch.float32}
    assert float(torch.cat([gradient.flatten() for gradient in gradients]).norm()) == pytest.approx(LIMIT, rel=1e-5)
    assert not any(parameter.grad is not None for parameter in model.parameters())
