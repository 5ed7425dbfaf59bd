"""The critic learns what is to come, at its own learning rate, and says how well."""

from __future__ import annotations

import numpy as np
import pytest
from local_models import build_tiny, fill_columns, make_plan, make_updater, random_batch

from rllm_core.data.batch import TokenBatch
from rllm_local.critic import Critic, critic_metrics
from rllm_local.settings import CriticSection

ROWS = [(5, 3), (2, 4), (9, 2), (3, 7)]


def with_returns(batch: TokenBatch, returns: np.ndarray, values: np.ndarray) -> TokenBatch:
    return batch.with_columns(returns=returns.astype(np.float32), values=values.astype(np.float32))


@pytest.mark.long
def test_critic_learns_the_returns_of_its_states() -> None:
    model = build_tiny(0)
    critic = Critic(model, CriticSection(learning_rate=0.3))
    updater = make_updater(model, critic=critic)
    batch = random_batch(ROWS)
    # Of what was last read, which the model knows, and not of the token it is about to sample, which it does not.
    returns = np.where(np.roll(batch.tokens, 1) % 2, 1.0, -1.0).astype(np.float32)
    batch = batch.with_columns(advantages=np.zeros(len(batch.tokens), np.float32), returns=returns)
    metrics = []
    for step in range(60):
        batch = fill_columns(model, batch, "values", critic=critic)
        metrics.append(updater.update(batch, make_plan(global_step=step)).metrics)
    assert metrics[0]["critic/value_loss"] == pytest.approx(0.5)
    assert metrics[0]["critic/explained_variance"] == pytest.approx(0.0, abs=1e-6)
    assert metrics[-1]["critic/value_loss"] < 0.02
    assert metrics[-1]["critic/explained_variance"] > 0.95


def test_explained_variance_of_perfect_and_constant_values() -> None:
    batch = random_batch(ROWS)
    returns = np.random.default_rng(0).normal(0, 1, len(batch.tokens))
    returns[np.flatnonzero(batch.loss_mask)[0]] = np.nan
    perfect = critic_metrics(with_returns(batch, returns, np.nan_to_num(returns) + 0.5))
    assert perfect["critic/explained_variance"] == pytest.approx(1.0)
    constant = critic_metrics(with_returns(batch, returns, np.full(len(returns), 3.0)))
    assert constant["critic/explained_variance"] == pytest.approx(0.0, abs=1e-6)
    known = batch.loss_mask & ~np.isnan(returns)
    assert constant["critic/value_mean"] == 3.0
    assert constant["critic/return_mean"] == pytest.approx(returns[known].mean(), rel=1e-5)
    assert perfect["critic/value_mean"] == pytest.approx(returns[known].mean() + 0.5, rel=1e-5)


def test_explained_variance_is_missing_for_equal_returns() -> None:
    batch = random_batch(ROWS)
    assert critic_metrics(batch) == {}
    ones = np.ones(len(batch.tokens))
    assert "critic/explained_variance" not in critic_metrics(with_returns(batch, ones, 0 * ones))


def test_critic_learning_rate_follows_the_schedule() -> None:
    model, batch = build_tiny(0), random_batch(ROWS)
    updater = make_updater(
        model, critic=Critic(model, CriticSection(learning_rate=0.1)), lr_schedule="linear", total_steps=4
    )
    rates = [updater.update(batch, make_plan(global_step=step)).metrics["critic/lr"] for step in range(4)]
    assert rates == pytest.approx([0.1, 0.075, 0.05, 0.025])
