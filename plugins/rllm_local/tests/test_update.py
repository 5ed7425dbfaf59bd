"""Updates against a naive reference: every row by itself, full logits, autograd, one token after the other."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from expecting import expect_error
from local_models import build_tiny, gradient_of, make_plan, make_updater, random_batch, weights_of

from rllm_backend_kit.minibatches import sampled_per_row
from rllm_core.contracts.loss import LossInput
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import LossError, RllmError

AGGREGATIONS = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
MAX_RESPONSE_LENGTH = 50

MULTI_TURN = [[(5, 3), (2, 4)], [(1, 1)], [(30, 12), (1, 1), (4, 6)], [(3, 0), (2, 5)], [(8, 25)], [(2, 2)]]
"""(prompt, response) lengths of the turns of each trajectory."""


def _one_loss(name: str, logprob: torch.Tensor, old: float, advantage: float) -> torch.Tensor:
    if name == "reinforce":
        return -advantage * logprob
    ratio = torch.exp(logprob - old)
    if name == "importance_sampling":
        return -advantage * ratio
    clipped = torch.clip(ratio, 1 - 0.2, 1 + 0.3)
    return -torch.min(ratio * advantage, clipped * advantage)


def _aggregated(mode: str, rows: list[list[torch.Tensor]]) -> torch.Tensor:
    rows = [row for row in rows if row]
    sums = torch.stack([torch.stack(row).sum() for row in rows])
    match mode:
        case "token-mean":
            return sums.sum() / sum(len(row) for row in rows)
        case "token-sum":
            return sums.sum()
        case "seq-mean-token-sum":
            return sums.mean()
        case "seq-mean-token-mean":
            return torch.stack([torch.stack(row).mean() for row in rows]).mean()
        case _:
            return sums.mean() / MAX_RESPONSE_LENGTH


def _reference(
    model: Any, batch: TokenBatch, losses: dict[str, str], *, aggregation: str, entropy: float, temperature: float
) -> tuple[float, torch.Tensor]:
    """Loss and gradient of one optimizer step over the whole batch."""
    assert batch.old_logprobs is not None
    assert batch.advantages is not None
    rows = []
    for row in range(batch.n_rows):
        start, end = int(batch.row_offsets[row]), int(batch.row_offsets[row + 1])
        ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
        distribution = torch.log_softmax(model(input_ids=ids[None]).logits[0] / temperature, dim=-1)
        name = losses[batch.roles[batch.role[row]]]
        tokens = []
        for place in range(start, end):
            if batch.loss_mask[place]:
                before = distribution[place - start - 1]
                loss = _one_loss(
                    name, before[ids[place - start]], float(batch.old_logprobs[place]), float(batch.advantages[place])
                )
                tokens.append(loss - entropy * -(before.exp() * before).sum())
        rows.append(tokens)
    model.zero_grad()
    loss = _aggregated(aggregation, rows)
    loss.backward()
    gradient = torch.cat([parameter.grad.flatten().clone() for parameter in model.parameters()])
    model.zero_grad()
    return float(loss.detach()), gradient


def _near(first: torch.Tensor, second: torch.Tensor, relative: float = 1e-5) -> None:
    """Compare by the norm. Rounding errors of terms that cancel differ between processors, up to 5e-6 of it."""
    assert float(second.norm()) > 0
    assert float((first - second).norm() / second.norm()) < relative


def _old_logprobs_near(model: Any, batch: TokenBatch, spread: float, temperature: float) -> TokenBatch:
    """Old log-probs around those of the model, so that some ratios are clipped and some are not."""
    old = np.zeros(len(batch.tokens), np.float32)
    generator = np.random.default_rng(4)
    with torch.no_grad():
        for row in range(batch.n_rows):
            start, end = batch.row_offsets[row], batch.row_offsets[row + 1]
            ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
            logprobs = torch.log_softmax(model(input_ids=ids[None]).logits[0] / temperature, dim=-1)
            old[start + 1 : end] = logprobs[:-1].gather(1, ids[1:, None])[:, 0].numpy()
    old += generator.normal(0, spread, old.shape).astype(np.float32)
    return batch.with_columns(old_logprobs=old * batch.loss_mask, sampling_logprobs=old * batch.loss_mask)


@pytest.mark.parametrize(
    ("loss", "rollouts", "aggregation"),
    [
        *(("ppo", 1 + 2 * (at % 2), aggregation) for at, aggregation in enumerate(AGGREGATIONS)),
        ("importance_sampling", 1, "token-mean"),
        ("reinforce", 2, "seq-mean-token-sum-norm"),
    ],
)
def test_loss_and_gradient_equal_the_naive_reference(loss: str, rollouts: int, aggregation: str) -> None:
    model = build_tiny(0)
    batch = _old_logprobs_near(model, random_batch(MULTI_TURN, rollouts=rollouts), 0.3, 1.0)
    expected, gradient = _reference(
        model, batch, {"agent": loss}, aggregation=aggregation, entropy=0.0, temperature=1.0
    )
    updater = make_updater(model, max_tokens_per_microbatch=60)
    metrics = updater.update(batch, make_plan(loss, aggregation=aggregation)).metrics
    assert metrics["actor/loss"] == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert metrics["actor/grad_norm"] == pytest.approx(float(gradient.norm()), rel=1e-5)
    _near(gradient_of(model), gradient)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_entropy_bonus_and_the_temperature_are_in_the_gradient(temperature: float) -> None:
    model = build_tiny(1)
    batch = _old_logprobs_near(model, random_batch(MULTI_TURN), 0.3, temperature)
    options = {"aggregation": "token-mean", "temperature": temperature}
    with_bonus = _reference(model, batch, {"agent": "ppo"}, entropy=0.7, **options)
    without = _reference(model, batch, {"agent": "ppo"}, entropy=0.0, **options)
    metrics = make_updater(model, temperature=temperature).update(batch, make_plan("ppo", entropy_coeff=0.7)).metrics
    assert metrics["actor/loss"] == pytest.approx(with_bonus[0], rel=1e-5)
    assert metrics["actor/entropy"] == pytest.approx((without[0] - with_bonus[0]) / 0.7, rel=1e-5)
    _near(gradient_of(model), with_bonus[1])


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_each_role_goes_through_its_own_loss(aggregation: str) -> None:
    model = build_tiny(2)
    roles = {"solver": "ppo", "judge": "reinforce", "critic": "importance_sampling"}
    batch = _old_logprobs_near(model, random_batch([*MULTI_TURN, *MULTI_TURN], roles=list(roles)), 0.3, 1.0)
    expected, gradient = _reference(model, batch, roles, aggregation=aggregation, entropy=0.0, temperature=1.0)
    for max_tokens in (1, 100):
        changed = build_tiny(2)
        updater = make_updater(changed, max_tokens_per_microbatch=max_tokens)
        metrics = updater.update(batch, make_plan(roles, aggregation=aggregation)).metrics
        assert metrics["actor/loss"] == pytest.approx(expected, rel=1e-5, abs=1e-6)
        _near(gradient_of(changed), gradient)


def _sequence_level(inputs: LossInput, params: Any) -> torch.Tensor:
    """A loss that looks at whole sequences, as GSPO does: the ratio is the row's geometric mean."""
    rows, index = inputs.row_ids.unique_consecutive(return_inverse=True)
    assert len(rows) == len(inputs.row_ids.unique())
    log_ratio = inputs.logprobs - inputs.old_logprobs
    totals = torch.zeros(len(rows)).index_add(0, index, log_ratio)
    return -inputs.advantages * (totals / index.bincount()).exp()[index]


@pytest.mark.long
@pytest.mark.parametrize(
    ("loss", "aggregation"),
    [("ppo", "token-mean"), (_sequence_level, "seq-mean-token-mean"), (_sequence_level, "token-sum")],
    ids=["ppo", "sequence_level", "sequence_level of a sum"],
)
def test_cutting_into_micro_batches_does_not_change_the_gradient(loss: Any, aggregation: str) -> None:
    lengths = [(int(p), int(r)) for p, r in np.random.default_rng(1).integers(1, 30, (24, 2))]
    batch = random_batch(lengths)
    gradients = []
    for max_tokens in (1_000_000, 200, 1):
        model = build_tiny(0)
        updater = make_updater(model, max_tokens_per_microbatch=max_tokens)
        updater.update(batch, make_plan({"agent": loss}, aggregation=aggregation, entropy_coeff=0.1))
        gradients.append(gradient_of(model))
    for gradient in gradients[1:]:
        _near(gradient, gradients[0])


@pytest.mark.long
def test_the_same_seed_gives_the_same_weights_bit_for_bit_and_another_seed_other_ones() -> None:
    batch = random_batch([(3 + index, 4) for index in range(20)])
    results = []
    for seed in (1, 1, 2):
        model = build_tiny(0)
        updater = make_updater(model, num_minibatches=3, num_epochs=2, max_tokens_per_microbatch=50)
        metrics = [updater.update(batch, make_plan(global_step=step, seed=seed + step)).metrics for step in range(3)]
        results.append((weights_of(model), metrics))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]
    assert not torch.equal(results[0][0], results[2][0])


@pytest.mark.parametrize(("minibatches", "epochs"), [(1, 1), (3, 2), (7, 1), (50, 2)])
def test_every_pass_uses_every_row_once_in_minibatches_of_equal_size(minibatches: int, epochs: int) -> None:
    batch = random_batch([(2, 1)] * 10)
    seen: list[list[int]] = []

    def noting(inputs: LossInput, params: Any) -> torch.Tensor:
        seen.append(inputs.row_ids.tolist())
        return -inputs.logprobs

    model = build_tiny(0)
    updater = make_updater(model, num_minibatches=minibatches, num_epochs=epochs)
    updater.update(batch, make_plan({"agent": noting}))
    per_pass = min(minibatches, 10)
    assert len(seen) == per_pass * epochs
    for number in range(epochs):
        parts = seen[number * per_pass : (number + 1) * per_pass]
        assert sorted(row for part in parts for row in part) == list(range(10))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert {int(state["step"]) for state in updater.optimizer.state.values()} == {per_pass * epochs}


def test_an_optimizer_step_is_that_of_adamw_with_the_settings() -> None:
    model, batch = build_tiny(0), random_batch(MULTI_TURN)
    settings = {"learning_rate": 3e-3, "beta1": 0.8, "beta2": 0.9, "eps": 1e-6, "weight_decay": 0.1}
    updater = make_updater(model, total_steps=10, lr_schedule="linear", **settings)
    weights = weights_of(model).double()
    first = second = torch.zeros_like(weights)
    for step in range(3):
        metrics = updater.update(batch, make_plan(global_step=step)).metrics
        rate = 3e-3 * (1 - step / 10)
        assert metrics["actor/lr"] == pytest.approx(rate)
        gradient = gradient_of(model).double()
        first = 0.8 * first + 0.2 * gradient
        second = 0.9 * second + 0.1 * gradient**2
        weights = weights * (1 - rate * 0.1)
        corrected = (second / (1 - 0.9 ** (step + 1))).sqrt() + 1e-6
        weights = weights - rate * first / (1 - 0.8 ** (step + 1)) / corrected
        _near(weights_of(model).double(), weights, 1e-6)


def test_the_gradient_of_one_update_is_not_in_the_next() -> None:
    model = build_tiny(0)
    updater = make_updater(model)
    updater.update(random_batch(MULTI_TURN, seed=1), make_plan("reinforce"))
    batch = random_batch(MULTI_TURN, seed=2)
    _, expected = _reference(
        copy.deepcopy(model), batch, {"agent": "reinforce"}, aggregation="token-mean", entropy=0.0, temperature=1.0
    )
    updater.update(batch, make_plan("reinforce"))
    _near(gradient_of(model), expected)


def test_gradients_are_scaled_down_to_the_norm_and_reported_as_they_were() -> None:
    batch, norms, gradients = random_batch(MULTI_TURN), [], []
    for limit in (1e9, 0.01):
        model = build_tiny(0)
        norms.append(make_updater(model, max_grad_norm=limit).update(batch, make_plan()).metrics["actor/grad_norm"])
        gradients.append(gradient_of(model))
    assert norms[0] == norms[1] > 0.01
    assert float(gradients[1].norm()) == pytest.approx(0.01, rel=1e-4)
    _near(gradients[1] / 0.01, gradients[0] / norms[0], 1e-4)


def _masked(batch: TokenBatch, rows: list[int]) -> TokenBatch:
    mask = batch.loss_mask & ~np.repeat(np.isin(np.arange(batch.n_rows), rows), batch.row_lengths)
    return replace(batch, loss_mask=mask)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])
def test_masked_rows_add_nothing(aggregation: str) -> None:
    whole = _masked(random_batch([(4, 3), (5, 2), (60, 9), (1, 1)]), [1, 3])
    assert sampled_per_row(whole).tolist() == [3, 0, 9, 0]
    expected, gradient = _reference(
        build_tiny(0), whole, {"agent": "ppo"}, aggregation=aggregation, entropy=0.0, temperature=1.0
    )
    for max_tokens in (1, 1000):
        model = build_tiny(0)
        updater = make_updater(model, max_tokens_per_microbatch=max_tokens)
        metrics = updater.update(whole, make_plan(aggregation=aggregation)).metrics
        assert metrics["actor/loss"] == pytest.approx(expected, rel=1e-5)
        _near(gradient_of(model), gradient)


def test_a_batch_without_a_sampled_token_changes_no_weight() -> None:
    model = build_tiny(0)
    before = weights_of(model)
    batch = _masked(random_batch([(4, 3), (5, 2)]), [0, 1])
    metrics = make_updater(model, weight_decay=0.1).update(batch, make_plan()).metrics
    assert torch.equal(weights_of(model), before)
    assert all(math.isfinite(value) for value in metrics.values())


def test_a_gradient_that_is_not_finite_stops_the_run_before_it_reaches_the_weights() -> None:
    model = build_tiny(0)
    before = weights_of(model)

    def steep(inputs: LossInput, params: Any) -> torch.Tensor:
        """Zero everywhere, with the infinite slope of a root at zero."""
        losses = (inputs.logprobs * 0).sqrt()
        assert losses.isfinite().all()
        return losses

    with expect_error(RllmError, "gradient-not-finite", "step 12") as caught:
        make_updater(model).update(random_batch([(4, 3)]), make_plan({"agent": steep}, global_step=12))
    assert not isinstance(caught.value, LossError)
    assert torch.equal(weights_of(model), before)


def test_update_huge_advantages_are_named_with_reward() -> None:
    model = build_tiny(0)
    before = weights_of(model)
    batch = random_batch([(4, 3), (4, 3)])
    advantages = np.where(batch.loss_mask & (np.arange(len(batch.tokens)) > 7), np.float32(1e22), np.float32(0.5))
    batch.groups[0].trajectories[1].reward = 2e22
    values = ("step 0", "advantages", "float32", "1e+22", "reward 2e+22", "trajectory 1", "'task:agent'")
    with expect_error(RllmError, "gradient-not-finite", *values):
        make_updater(model).update(batch.with_columns(advantages=advantages), make_plan())
    assert torch.equal(weights_of(model), before)


@pytest.mark.parametrize(
    ("loss", "code", "values"),
    [
        (lambda inputs, params: -inputs.logprobs.mean(), "bad-loss-result", ["shape ()", "(3,)"]),
        (lambda inputs, params: -inputs.logprobs[:2], "bad-loss-result", ["shape (2,)", "(3,)"]),
        (lambda inputs, params: 0.5, "bad-loss-result", ["float", "(3,)"]),
        (lambda inputs, params: None, "bad-loss-result", ["NoneType", "(3,)"]),
        (lambda inputs, params: inputs.logprobs * math.nan, "loss-not-finite", ["3 losses"]),
        (lambda inputs, params: inputs.logprobs / 0, "loss-not-finite", ["3 losses"]),
    ],
    ids=["mean", "too few", "float", "nothing", "nan", "infinite"],
)
def test_an_unusable_loss_stops_the_run_before_it_reaches_the_weights_and_is_named(
    loss: Any, code: str, values: list[str]
) -> None:
    model = build_tiny(0)
    before = weights_of(model)
    with expect_error(LossError, code, "loss 'custom'", "role 'agent'", *values):
        make_updater(model).update(random_batch([(4, 3)]), make_plan({"agent": loss}))
    assert torch.equal(weights_of(model), before)


def test_metrics_of_the_first_step_are_those_of_the_policy_that_sampled() -> None:
    model = build_tiny(0)
    batch = _old_logprobs_near(model, random_batch(MULTI_TURN), 0.0, 1.0)
    metrics = make_updater(model).update(batch, make_plan()).metrics
    assert metrics["actor/rollout_logprob_difference"] < 1e-5
    assert metrics["actor/ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert metrics["actor/kl_old_new"] == pytest.approx(0, abs=1e-8)
    # Only the first optimizer step is taken with the weights that sampled.
    several = make_updater(build_tiny(0), num_epochs=4, learning_rate=0.05).update(batch, make_plan()).metrics
    assert several["actor/rollout_logprob_difference"] < 1e-5
    assert several["actor/kl_old_new"] > 1e-3


@pytest.mark.parametrize("tokens", [8, 60, 100_000])
def test_the_share_of_clipped_tokens_is_that_of_the_whole_batch(tokens: int) -> None:
    model = build_tiny(0)
    batch = _old_logprobs_near(model, random_batch(MULTI_TURN), 0.0, 1.0)
    assert batch.old_logprobs is not None and batch.advantages is not None
    # Every third token was half as likely: its ratio is 2.
    changed = (np.arange(len(batch.tokens)) % 3 == 0) & batch.loss_mask
    old = batch.old_logprobs - np.float32(np.log(2)) * changed
    expected = (changed & (batch.advantages > 0))[batch.loss_mask].mean()
    assert 0 < expected < 1
    updater = make_updater(model, max_tokens_per_microbatch=tokens)
    metrics = updater.update(batch.with_columns(old_logprobs=old), make_plan("ppo")).metrics
    assert metrics["actor/clip_fraction"] == pytest.approx(expected)
