"""Updates against a naive reference: every row by itself, full logits, autograd, in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from expecting import expect_error
from local_models import (
    build_tiny,
    gradient_of,
    make_critic,
    make_plan,
    make_updater,
    plain_rows,
    random_batch,
    weights_of,
)

from rllm_backend_kit.minibatches import sampled_per_row
from rllm_core.contracts.backend import KlTerm, RolloutCorrection, UpdatePlan
from rllm_core.contracts.loss import LossInput
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import LossError, RllmError
from rllm_local.critic import Critic

AGGREGATIONS = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
MAX_RESPONSE_LENGTH = 50
MULTI_TURN = [[(5, 3), (2, 4)], [(1, 1)], [(30, 12), (1, 1), (4, 6)], [(3, 0), (2, 5)], [(8, 25)], [(2, 2)]]
"""(prompt, response) lengths of the turns of each trajectory."""
TOKEN = RolloutCorrection(mode="token", cap=1.2, floor=0.7, beyond_cap="mask")
SEQUENCE = RolloutCorrection(mode="sequence", cap=1.5, floor=0.0, beyond_cap="truncate")
CLIP, VALUE_COEFF = 0.2, 0.7
AGENT = {"agent": "ppo"}


def _policy_losses(name: str, logprobs: Any, old: Any, advantages: Any) -> torch.Tensor:
    if name == "reinforce":
        return -advantages * logprobs
    ratios = torch.exp(logprobs - old)
    if name == "importance_sampling":
        return -advantages * ratios
    return -torch.min(ratios * advantages, torch.clip(ratios, 1 - 0.2, 1 + 0.3) * advantages)


def _aggregate(mode: str, rows: list[torch.Tensor]) -> torch.Tensor:
    rows = [row for row in rows if len(row)]
    sums = torch.stack([row.sum() for row in rows])
    match mode:
        case "token-mean":
            return sums.sum() / sum(map(len, rows))
        case "token-sum":
            return sums.sum()
        case "seq-mean-token-sum":
            return sums.mean()
        case "seq-mean-token-mean":
            return torch.stack([row.mean() for row in rows]).mean()
        case _:
            return sums.mean() / MAX_RESPONSE_LENGTH


def _divergence(difference: torch.Tensor, estimator: str) -> torch.Tensor:
    match estimator:
        case "k1":
            return difference
        case "k2":
            return difference**2 / 2
        case _:
            return torch.exp(-difference) - 1 + difference


def _weights(correction: RolloutCorrection, log_ratios: torch.Tensor) -> torch.Tensor:
    ratios = (log_ratios if correction.mode == "token" else log_ratios.sum().expand(len(log_ratios))).exp()
    beyond = correction.cap if correction.beyond_cap == "truncate" else 0.0
    return torch.where(ratios > correction.cap, beyond, torch.where(ratios < correction.floor, 0.0, ratios))


def _reference(
    model: Any,
    batch: TokenBatch,
    losses: Mapping[str, str],
    plan: UpdatePlan,
    *,
    temperature: float = 1.0,
    critic: Critic | None = None,
) -> tuple[float, torch.Tensor, torch.Tensor]:
    """Return the policy's loss, its gradient in a copy of the model, and the gradient of the value loss in both."""
    model = copy.deepcopy(model).double()
    critic = critic and copy.deepcopy(critic).double()
    rows, squares = [], torch.zeros((), dtype=torch.float64)
    for row, (place, table, logprobs, states) in enumerate(plain_rows(model, batch, temperature)):
        mask = batch.loss_mask[place]
        table, logprobs = table[mask], logprobs[mask]
        columns = ("old_logprobs", "sampling_logprobs", "ref_logprobs", "advantages", "values", "returns")
        old, sampled, ref, advantages, values, returns = (
            None if getattr(batch, name) is None else torch.from_numpy(getattr(batch, name)[place][mask]).double()
            for name in columns
        )
        found = _policy_losses(losses[batch.roles[batch.role[row]]], logprobs, old, advantages)
        if plan.rollout_correction is not None:
            found = found * _weights(plan.rollout_correction, old - sampled)
        if plan.kl is not None:
            found = found + plan.kl.beta * _divergence(logprobs - ref, plan.kl.estimator)
        rows.append(found + plan.entropy_coeff * (table.exp() * table).sum(1))
        if critic is not None:
            known = ~returns.isnan()
            values, returns = values[known], returns[known]
            predicted = states[mask][known] @ critic.weight / states.shape[1] + critic.bias
            near = values + torch.clamp(predicted - values, -CLIP, CLIP)
            errors = torch.maximum((predicted - returns) ** 2, (near - returns) ** 2)
            squares = squares + VALUE_COEFF * errors.sum() / 2
    loss = _aggregate(plan.aggregation, rows)
    loss.backward(retain_graph=True)
    of_policy = gradient_of(model)
    if critic is None:
        return float(loss.detach()), of_policy, of_policy
    model.zero_grad()
    (squares / int(batch.loss_mask.sum())).backward()
    return float(loss.detach()), of_policy, torch.cat([gradient_of(model), gradient_of(critic)])


def _near(first: torch.Tensor, second: torch.Tensor, relative: float = 1e-5) -> None:
    """Compare by the norm. Rounding errors of terms that cancel differ between processors, up to 5e-6 of it."""
    assert float(second.norm()) > 0
    assert float((first.double() - second).norm() / second.norm()) < relative


def _old_logprobs_near(model: Any, batch: TokenBatch, spread: float, temperature: float = 1.0) -> TokenBatch:
    """Old log-probs around those of the model, so that some ratios are clipped and some are not."""
    old = np.zeros(len(batch.tokens), np.float32)
    with torch.no_grad():
        for place, _, logprobs, _ in plain_rows(model, batch, temperature):
            old[place] = logprobs.numpy()
    old += np.random.default_rng(4).normal(0, spread, old.shape).astype(np.float32)
    return batch.with_columns(old_logprobs=old * batch.loss_mask, sampling_logprobs=old * batch.loss_mask)


@pytest.fixture(scope="module")
def full_batch() -> Callable[..., TokenBatch]:
    """A batch with every column, old log-probs and values around what is plausible, some tokens without a return."""

    def make(rows: Any = MULTI_TURN, **options: Any) -> TokenBatch:
        batch = random_batch(rows, **options)
        generator = np.random.default_rng(6)

        def noise(size: float) -> np.ndarray:
            return generator.normal(0, size, len(batch.tokens)).astype(np.float32)

        returns = noise(1.0)
        returns[generator.random(len(returns)) < 0.2] = np.nan
        return batch.with_columns(
            old_logprobs=batch.sampling_logprobs + noise(0.3) * batch.loss_mask,
            ref_logprobs=batch.sampling_logprobs + noise(0.5) * batch.loss_mask,
            values=noise(0.3),
            returns=returns,
        )

    return make


ROLES = {"solver": "ppo", "judge": "reinforce", "critic": "importance_sampling"}
CASES: list[tuple[Mapping[str, str], str, dict[str, Any]]] = [
    *((AGENT, aggregation, {"rollouts": 1 + 2 * (at % 2)}) for at, aggregation in enumerate(AGGREGATIONS)),
    ({"agent": "importance_sampling"}, "token-mean", {}),
    ({"agent": "reinforce"}, "seq-mean-token-sum-norm", {"rollouts": 2}),
    *((AGENT, "token-mean", {"temperature": each, "entropy": 0.7}) for each in (0.5, 2.0)),
    *((ROLES, each, {"rows": [*MULTI_TURN, *MULTI_TURN]}) for each in ("token-mean", "seq-mean-token-mean")),
    *((AGENT, each, {"masked": [1, 3]}) for each in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")),
]


@pytest.mark.parametrize(("losses", "aggregation", "options"), CASES, ids=str)
def test_loss_and_gradient_equal_the_naive_reference(
    losses: Mapping[str, str], aggregation: str, options: dict[str, Any]
) -> None:
    temperature, entropy = options.get("temperature", 1.0), options.get("entropy", 0.0)
    model = build_tiny(0)
    batch = random_batch(options.get("rows", MULTI_TURN), roles=list(losses), rollouts=options.get("rollouts", 1))
    batch = _mask_tokens(_old_logprobs_near(model, batch, 0.3, temperature), options.get("masked", []))
    plan = make_plan(losses, aggregation=aggregation, entropy_coeff=entropy)
    expected, gradient, _ = _reference(model, batch, losses, plan, temperature=temperature)
    for max_tokens in (1, 60):
        updater = make_updater(
            changed := copy.deepcopy(model), temperature=temperature, max_tokens_per_microbatch=max_tokens
        )
        metrics = updater.update(batch, plan).metrics
        assert metrics["actor/loss"] == pytest.approx(expected, rel=1e-5, abs=1e-6)
        assert metrics["actor/grad_norm"] == pytest.approx(float(gradient.norm()), rel=1e-5)
        _near(gradient_of(changed), gradient)
    if entropy:
        without = _reference(model, batch, losses, replace(plan, entropy_coeff=0.0), temperature=temperature)[0]
        assert metrics["actor/entropy"] == pytest.approx((without - expected) / entropy, rel=1e-5)


@pytest.mark.parametrize(
    ("estimator", "correction"),
    [("k1", None), ("k2", TOKEN), ("k3", SEQUENCE), ("k3", TOKEN)],
    ids=["k1", "k2 token", "k3 sequence", "k3 token"],
)
def test_gradient_with_all_terms_equals_the_naive_reference(
    estimator: Any, correction: RolloutCorrection | None, full_batch: Callable[..., TokenBatch]
) -> None:
    batch, model = full_batch(), build_tiny(0)
    critic = make_critic(model, clip=CLIP, value_loss_coeff=VALUE_COEFF)
    kl = KlTerm(beta=0.3, estimator=estimator)
    plan = make_plan("reinforce", entropy_coeff=0.1, kl=kl, rollout_correction=correction)
    _, of_policy, of_critic = _reference(model, batch, {"agent": "reinforce"}, plan, critic=critic)
    metrics = make_updater(model, critic=critic, max_tokens_per_microbatch=60).update(batch, plan).metrics
    expected = of_critic.clone()
    expected[: len(of_policy)] += of_policy
    _near(gradient_of(model), expected[: len(of_policy)])
    _near(gradient_of(critic), expected[len(of_policy) :])
    assert metrics["actor/grad_norm"] == pytest.approx(float(of_policy.norm()), rel=1e-5)
    assert metrics["critic/grad_norm"] == pytest.approx(float(of_critic.norm()), rel=1e-5)


def _sequence_level(inputs: LossInput, params: Any) -> torch.Tensor:
    """A loss that looks at whole sequences, as GSPO does: the ratio is the row's geometric mean."""
    rows, index = inputs.row_ids.unique_consecutive(return_inverse=True)
    assert len(rows) == len(inputs.row_ids.unique())
    log_ratio = inputs.logprobs - inputs.old_logprobs
    totals = torch.zeros(len(rows)).index_add(0, index, log_ratio)
    return -inputs.advantages * (totals / index.bincount()).exp()[index]


@pytest.mark.parametrize(
    ("loss", "changes"),
    [
        ("ppo", {"kl": KlTerm(beta=0.3, estimator="k2"), "rollout_correction": TOKEN}),
        ("ppo", {"kl": KlTerm(beta=0.3, estimator="k2"), "rollout_correction": SEQUENCE}),
        ({"agent": _sequence_level}, {"aggregation": "seq-mean-token-mean", "entropy_coeff": 0.1}),
        ({"agent": _sequence_level}, {"aggregation": "token-sum"}),
    ],
    ids=["token", "sequence", "sequence_level", "sequence_level of a sum"],
)
def test_micro_batches_change_neither_gradient_nor_metrics(
    loss: Any, changes: dict[str, Any], full_batch: Callable[..., TokenBatch]
) -> None:
    lengths = [(int(p), int(r)) for p, r in np.random.default_rng(1).integers(1, 30, (12, 2))]
    batch, found = full_batch(lengths), []
    for max_tokens in (1_000_000, 300, 1):
        model = build_tiny(0)
        critic = make_critic(model)
        updater = make_updater(model, critic=critic, max_tokens_per_microbatch=max_tokens)
        metrics = updater.update(batch, make_plan(loss, **changes)).metrics
        found.append((gradient_of(model).double(), gradient_of(critic).double(), metrics))
    for *gradients, metrics in found[1:]:
        for gradient, expected in zip(gradients, found[0], strict=False):
            _near(gradient, expected)
        assert metrics == pytest.approx(found[0][2], rel=1e-5, abs=1e-6)


def test_only_roles_with_returns_teach_the_critic(full_batch: Callable[..., TokenBatch]) -> None:
    batch = full_batch([*MULTI_TURN, *MULTI_TURN], roles=("solver", "judge"))
    judged = np.repeat(batch.role == batch.roles.index("judge"), batch.row_lengths)
    batch = batch.with_columns(returns=np.where(judged, np.nan, batch.returns).astype(np.float32))
    others = np.where(judged, 50.0, batch.values).astype(np.float32)
    found = []
    for changed in (batch, batch.with_columns(values=others), batch.with_columns(advantages=batch.advantages * 2)):
        model = build_tiny(0)
        critic = make_critic(model)
        make_updater(model, critic=critic).update(changed, make_plan({"solver": "ppo", "judge": "reinforce"}))
        found.append(gradient_of(critic))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.long
def test_seed_decides_every_bit_of_the_weights() -> None:
    batch = random_batch([(3 + index, 4) for index in range(20)])
    results = []
    for seed in (1, 1, 2):
        model = build_tiny(0)
        updater = make_updater(model, num_minibatches=3, num_epochs=2, max_tokens_per_microbatch=50)
        metrics = [updater.update(batch, make_plan(global_step=step, seed=seed + step)).metrics for step in range(2)]
        results.append((weights_of(model), metrics))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]
    assert not torch.equal(results[0][0], results[2][0])


@pytest.mark.parametrize(("minibatches", "epochs"), [(1, 1), (3, 2), (7, 1), (50, 2)])
def test_every_epoch_uses_each_row_once(minibatches: int, epochs: int) -> None:
    seen: list[list[int]] = []

    def noting(inputs: LossInput, params: Any) -> torch.Tensor:
        seen.append(inputs.row_ids.tolist())
        return -inputs.logprobs

    updater = make_updater(build_tiny(0), num_minibatches=minibatches, num_epochs=epochs)
    updater.update(random_batch([(2, 1)] * 10), make_plan({"agent": noting}))
    per_pass = min(minibatches, 10)
    assert len(seen) == per_pass * epochs
    for number in range(epochs):
        parts = seen[number * per_pass : (number + 1) * per_pass]
        assert sorted(row for part in parts for row in part) == list(range(10))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert {int(state["step"]) for state in updater.optimizer.state.values()} == {per_pass * epochs}


def test_optimizer_step_equals_adamw_with_the_settings() -> None:
    """The gradient of each step is that of its batch only."""
    model = build_tiny(0)
    settings = {"learning_rate": 3e-3, "beta1": 0.8, "beta2": 0.9, "eps": 1e-6, "weight_decay": 0.1}
    updater = make_updater(model, total_steps=10, lr_schedule="linear", **settings)
    weights = weights_of(model).double()
    first = second = torch.zeros_like(weights)
    for step in range(3):
        batch, plan = random_batch(MULTI_TURN, seed=step), make_plan("reinforce", global_step=step)
        expected = _reference(model, batch, {"agent": "reinforce"}, plan)[1]
        metrics = updater.update(batch, plan).metrics
        rate = 3e-3 * (1 - step / 10)
        assert metrics["actor/lr"] == pytest.approx(rate)
        gradient = gradient_of(model).double()
        _near(gradient, expected)
        first = 0.8 * first + 0.2 * gradient
        second = 0.9 * second + 0.1 * gradient**2
        weights = weights * (1 - rate * 0.1)
        corrected = (second / (1 - 0.9 ** (step + 1))).sqrt() + 1e-6
        weights = weights - rate * first / (1 - 0.8 ** (step + 1)) / corrected
        _near(weights_of(model), weights, 1e-6)


def test_gradients_are_clipped_and_reported_before_clipping() -> None:
    batch, norms, gradients = random_batch(MULTI_TURN), [], []
    for limit in (1e9, 0.01):
        model = build_tiny(0)
        norms.append(make_updater(model, max_grad_norm=limit).update(batch, make_plan()).metrics["actor/grad_norm"])
        gradients.append(gradient_of(model))
    assert norms[0] == norms[1] > 0.01
    assert float(gradients[1].norm()) == pytest.approx(0.01, rel=1e-4)
    _near(gradients[1] / 0.01, gradients[0] / norms[0], 1e-4)


def _mask_tokens(batch: TokenBatch, rows: list[int]) -> TokenBatch:
    mask = batch.loss_mask & ~np.repeat(np.isin(np.arange(batch.n_rows), rows), batch.row_lengths)
    return replace(batch, loss_mask=mask)


def test_batch_without_tokens_or_returns_changes_nothing() -> None:
    model = build_tiny(0)
    critic = make_critic(model)
    before = torch.cat([weights_of(model), weights_of(critic)])
    batch = _mask_tokens(random_batch([(4, 3), (5, 2), (3, 3)]), [0, 1, 2])
    assert sampled_per_row(batch).tolist() == [0, 0, 0]
    metrics = make_updater(model, critic=critic, weight_decay=0.1).update(batch, make_plan()).metrics
    assert torch.equal(torch.cat([weights_of(model), weights_of(critic)]), before)
    metrics |= (
        make_updater(model, critic=critic, weight_decay=0.1).update(random_batch(MULTI_TURN), make_plan()).metrics
    )
    assert torch.equal(weights_of(critic), before[-len(weights_of(critic)) :])
    assert "critic/value_loss" not in metrics
    assert all(math.isfinite(value) for value in metrics.values())


def _steep(inputs: LossInput, params: Any) -> torch.Tensor:
    """Zero everywhere, with the infinite slope of a root at zero."""
    return (inputs.logprobs * 0).sqrt()


NAMED = ["loss 'custom'", "role 'agent'"]


@pytest.mark.parametrize(
    ("loss", "code", "values"),
    [
        (lambda inputs, params: -inputs.logprobs.mean(), "bad-loss-result", [*NAMED, "shape ()", "(3,)"]),
        (lambda inputs, params: -inputs.logprobs[:2], "bad-loss-result", [*NAMED, "shape (2,)", "(3,)"]),
        (lambda inputs, params: None, "bad-loss-result", [*NAMED, "NoneType", "(3,)"]),
        (lambda inputs, params: inputs.logprobs * math.nan, "loss-not-finite", [*NAMED, "3 losses"]),
        (lambda inputs, params: inputs.logprobs / 0, "loss-not-finite", [*NAMED, "3 losses"]),
        (_steep, "gradient-not-finite", ["step 12"]),
    ],
    ids=["mean", "too few", "nothing", "nan", "infinite", "gradient"],
)
def test_unusable_loss_stops_the_run_before_the_weights(loss: Any, code: str, values: list[str]) -> None:
    model = build_tiny(0)
    before = weights_of(model)
    with expect_error(LossError if NAMED[0] in values else RllmError, code, *values):
        make_updater(model).update(random_batch([(4, 3)]), make_plan({"agent": loss}, global_step=12))
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


def test_first_step_metrics_equal_the_sampling_policys() -> None:
    model = build_tiny(0)
    batch = _old_logprobs_near(model, random_batch(MULTI_TURN), 0.0)
    metrics = make_updater(model).update(batch, make_plan()).metrics
    assert metrics["actor/rollout_logprob_difference"] < 1e-5
    assert metrics["actor/ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert metrics["actor/kl_old_new"] == pytest.approx(0, abs=1e-8)
    # Only the first optimizer step is taken with the weights that sampled.
    several = make_updater(build_tiny(0), num_epochs=4, learning_rate=0.05).update(batch, make_plan()).metrics
    assert several["actor/rollout_logprob_difference"] < 1e-5
    assert several["actor/kl_old_new"] > 1e-3


@pytest.mark.parametrize("tokens", [8, 60, 100_000])
def test_clip_fraction_covers_the_whole_batch(tokens: int) -> None:
    model = build_tiny(0)
    batch = _old_logprobs_near(model, random_batch(MULTI_TURN), 0.0)
    # Every third token was half as likely: its ratio is 2.
    changed = (np.arange(len(batch.tokens)) % 3 == 0) & batch.loss_mask
    old = batch.old_logprobs - np.float32(np.log(2)) * changed
    expected = (changed & (batch.advantages > 0))[batch.loss_mask].mean()
    assert 0 < expected < 1
    updater = make_updater(model, max_tokens_per_microbatch=tokens)
    metrics = updater.update(batch.with_columns(old_logprobs=old), make_plan("ppo")).metrics
    assert metrics["actor/clip_fraction"] == pytest.approx(expected)


def test_metrics_tell_divergence_and_correction(full_batch: Callable[..., TokenBatch]) -> None:
    batch = full_batch()
    log_ratios = torch.from_numpy((batch.old_logprobs - batch.sampling_logprobs)[batch.loss_mask]).double()
    weights = _weights(TOKEN, log_ratios).numpy()
    assert 0 < (weights == 0).mean() < 1
    plan = make_plan(kl=KlTerm(beta=0.3, estimator="k3"), rollout_correction=TOKEN)
    metrics = make_updater(build_tiny(0)).update(batch, plan).metrics
    assert metrics["actor/rollout_weight"] == pytest.approx(weights.mean(), rel=1e-5)
    assert metrics["actor/rollout_masked"] == pytest.approx((weights == 0).mean())
    assert metrics["actor/kl_ref"] > 0
    without = make_updater(build_tiny(0)).update(batch, make_plan()).metrics
    assert not {"actor/kl_ref", "actor/rollout_weight", "actor/rollout_masked", "critic/lr"} & without.keys()
