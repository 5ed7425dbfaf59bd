"""Updates with KL divergence, rollout correction and a critic, against a naive reference and against themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from local_models import build_tiny, make_critic, make_plan, make_updater, random_batch, weights_of

from rllm_core.contracts.backend import KlTerm, RolloutCorrection, UpdatePlan
from rllm_core.data.batch import TokenBatch
from rllm_local.critic import Critic

MULTI_TURN = [[(5, 3), (2, 4)], [(1, 1)], [(30, 12), (1, 1), (4, 6)], [(3, 0), (2, 5)], [(8, 25)], [(2, 2)]]
"""(prompt, response) lengths of the turns of each trajectory."""
TOKEN = RolloutCorrection(mode="token", cap=1.2, floor=0.7, beyond_cap="mask")
SEQUENCE = RolloutCorrection(mode="sequence", cap=1.5, floor=0.0, beyond_cap="truncate")
BETA, ENTROPY, CLIP, VALUE_COEFF = 0.3, 0.1, 0.2, 0.7


def divergence(logprob: torch.Tensor, reference: float, estimator: str) -> torch.Tensor:
    match estimator:
        case "k1":
            return logprob - reference
        case "k2":
            return (logprob - reference) ** 2 / 2
        case _:
            return torch.exp(reference - logprob) - 1 - (reference - logprob)


def weight(correction: RolloutCorrection, log_ratios: np.ndarray, place: int) -> float:
    ratio = math.exp(log_ratios[place] if correction.mode == "token" else log_ratios.sum())
    if ratio > correction.cap:
        return correction.cap if correction.beyond_cap == "truncate" else 0.0
    return 0.0 if ratio < correction.floor else ratio


def squared_error(value: torch.Tensor, target: float, old: float) -> torch.Tensor:
    near = old + torch.clamp(value - old, -CLIP, CLIP)
    return torch.maximum((value - target) ** 2, (near - target) ** 2) / 2


@dataclass
class Gradients:
    """Gradients of one optimizer step, each as one vector."""

    policy: torch.Tensor
    """Gradient of the policy's objective in the model."""
    value: torch.Tensor
    """Gradient of the value loss in the model."""
    head: torch.Tensor
    """Gradient of the value loss in the critic's head."""

    @property
    def value_norm(self) -> float:
        return float(torch.cat([self.value, self.head]).norm())


def naive_gradients(model: Any, critic: Critic, batch: TokenBatch, plan: UpdatePlan, *, entropy: float) -> Gradients:
    """Return gradients of `reinforce` averaged over tokens, in float64: row by row, token by token."""
    model, critic = model.double(), critic.double()
    policy, squares = torch.zeros(2, dtype=torch.float64)
    count = int(batch.loss_mask.sum())
    for start, end in zip(batch.row_offsets[:-1], batch.row_offsets[1:], strict=True):
        ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
        output = model(input_ids=ids[None], output_hidden_states=True)
        distribution = torch.log_softmax(output.logits[0], dim=-1)
        sampled = np.flatnonzero(batch.loss_mask[start:end]) + start
        log_ratios = batch.old_logprobs[sampled].astype(float) - batch.sampling_logprobs[sampled].astype(float)
        for number, place in enumerate(sampled):
            before = distribution[place - start - 1]
            logprob = before[ids[place - start]]
            loss = -float(batch.advantages[place]) * logprob
            if plan.rollout_correction is not None:
                loss = loss * weight(plan.rollout_correction, log_ratios, number)
            if plan.kl is not None:
                loss = loss + BETA * divergence(logprob, float(batch.ref_logprobs[place]), plan.kl.estimator)
            policy = policy + loss - entropy * -(before.exp() * before).sum()
            if batch.returns is not None and not math.isnan(batch.returns[place]):
                state = output.hidden_states[-1][0, place - start - 1]
                value = state @ critic.weight / len(state) + critic.bias
                target, old = float(batch.returns[place]), float(batch.values[place])
                squares = squares + VALUE_COEFF * squared_error(value, target, old)
    (policy / count).backward(retain_graph=True)
    of_policy = gradient(model)
    model.zero_grad()
    (squares / count).backward()
    return Gradients(policy=of_policy, value=gradient(model), head=gradient(critic))


def gradient(module: Any) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten().clone() for parameter in module.parameters()])


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert float(expected.norm()) > 0
    return float((found.double() - expected).norm() / expected.norm())


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


@pytest.mark.parametrize(
    ("estimator", "correction"),
    [("k1", None), ("k2", TOKEN), ("k3", SEQUENCE), ("k3", TOKEN)],
    ids=["k1", "k2 token", "k3 sequence", "k3 token"],
)
def test_the_gradient_of_a_whole_update_is_that_of_the_naive_reference(
    estimator: Any, correction: RolloutCorrection | None, full_batch: Callable[..., TokenBatch]
) -> None:
    batch, model = full_batch(), build_tiny(0)
    settings = {"clip": CLIP, "value_loss_coeff": VALUE_COEFF}
    critic = make_critic(model, **settings)
    terms = {"kl": KlTerm(beta=BETA, estimator=estimator), "rollout_correction": correction}
    plan = make_plan("reinforce", entropy_coeff=ENTROPY, **terms)
    updater = make_updater(model, critic=critic, max_tokens_per_microbatch=60)
    metrics = updater.update(batch, plan).metrics
    other = build_tiny(0)
    expected = naive_gradients(other, make_critic(other, **settings), batch, plan, entropy=ENTROPY)
    assert distance(gradient(model), expected.policy + expected.value) < 1e-5
    assert distance(gradient(critic), expected.head) < 1e-5
    assert metrics["actor/grad_norm"] == pytest.approx(float(expected.policy.norm()), rel=1e-5)
    assert metrics["critic/grad_norm"] == pytest.approx(expected.value_norm, rel=1e-5)


@pytest.mark.parametrize("correction", [TOKEN, SEQUENCE], ids=["token", "sequence"])
def test_cutting_into_micro_batches_changes_neither_gradient_nor_metrics(
    correction: RolloutCorrection, full_batch: Callable[..., TokenBatch]
) -> None:
    lengths = [(int(p), int(r)) for p, r in np.random.default_rng(1).integers(1, 30, (12, 2))]
    batch, found = full_batch(lengths), []
    for max_tokens in (1_000_000, 300, 1):
        model = build_tiny(0)
        critic = make_critic(model)
        updater = make_updater(model, critic=critic, max_tokens_per_microbatch=max_tokens)
        metrics = updater.update(
            batch, make_plan("ppo", kl=KlTerm(beta=BETA, estimator="k2"), rollout_correction=correction)
        ).metrics
        found.append((gradient(model).double(), gradient(critic).double(), metrics))
    for actor, critics, metrics in found[1:]:
        assert distance(actor, found[0][0]) < 1e-5
        assert distance(critics, found[0][1]) < 1e-5
        assert metrics == pytest.approx(found[0][2], rel=1e-5, abs=1e-6)


def test_each_role_has_its_own_loss_and_only_roles_with_returns_teach_the_critic(
    full_batch: Callable[..., TokenBatch],
) -> None:
    batch = full_batch([*MULTI_TURN, *MULTI_TURN], roles=("solver", "judge"))
    judged = np.repeat(batch.role == batch.roles.index("judge"), batch.row_lengths)
    batch = batch.with_columns(returns=np.where(judged, np.nan, batch.returns).astype(np.float32))

    def updated(changed: TokenBatch, **losses: str) -> tuple[torch.Tensor, torch.Tensor]:
        model = build_tiny(0)
        critic = make_critic(model)
        make_updater(model, critic=critic).update(changed, make_plan(losses))
        return gradient(model).double(), gradient(critic).double()

    mixed, of_critic = updated(batch, solver="ppo", judge="reinforce")
    assert distance(updated(batch, solver="ppo", judge="ppo")[0], mixed) > 1e-3
    assert distance(updated(batch, solver="reinforce", judge="reinforce")[0], mixed) > 1e-3
    others = np.where(judged, 50.0, batch.values).astype(np.float32)
    for same in (batch.with_columns(values=others), batch.with_columns(advantages=batch.advantages * 2)):
        assert torch.equal(updated(same, solver="ppo", judge="reinforce")[1], of_critic)


def test_a_batch_without_returns_leaves_the_critic_as_it_is() -> None:
    model = build_tiny(0)
    critic = make_critic(model)
    before = weights_of(critic)
    metrics = make_updater(model, critic=critic, weight_decay=0.1).update(random_batch(MULTI_TURN), make_plan()).metrics
    assert torch.equal(weights_of(critic), before)
    assert "critic/value_loss" not in metrics
    assert all(math.isfinite(value) for value in metrics.values())


def test_metrics_tell_how_far_the_policy_is_from_the_reference_and_what_the_correction_does(
    full_batch: Callable[..., TokenBatch],
) -> None:
    batch = full_batch()
    log_ratios = (batch.old_logprobs - batch.sampling_logprobs)[batch.loss_mask].astype(float)
    ratios = np.exp(log_ratios)
    weights = np.where((ratios > TOKEN.cap) | (ratios < TOKEN.floor), 0, ratios)
    assert 0 < (weights == 0).mean() < 1
    plan = make_plan(kl=KlTerm(beta=BETA, estimator="k3"), rollout_correction=TOKEN)
    metrics = make_updater(build_tiny(0)).update(batch, plan).metrics
    assert metrics["actor/rollout_weight"] == pytest.approx(weights.mean(), rel=1e-5)
    assert metrics["actor/rollout_masked"] == pytest.approx((weights == 0).mean())
    assert metrics["actor/kl_ref"] > 0
    without = make_updater(build_tiny(0)).update(batch, make_plan()).metrics
    assert not {"actor/kl_ref", "actor/rollout_weight", "actor/rollout_masked", "critic/lr"} & without.keys()
