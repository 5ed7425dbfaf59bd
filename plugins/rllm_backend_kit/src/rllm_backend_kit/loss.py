"""The loss of an update, token by token: the policy loss of each role, KL divergence, rollout weights, entropy bonus.

`token_objective` sums them. This module uses torch, and only backends and the check of a record import it. No number
depends on tokens of other rows, so micro-batches and ranks change nothing. `minibatches` has the weights of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_backend_kit.rejection import M2PO, find_rejected_tokens, log_ratios, m2po_cutoff
from rllm_core.contracts.backend import RolloutCorrection, UpdatePlan
from rllm_core.contracts.loss import LossInput
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import LossError, failures_as
from rllm_core.updates.losses import (
    MAX_LOG_RATIO,
    check_finite_losses,
    check_loss_gradient,
    check_loss_shape,
    importance_ratio,
    log_ratio,
    summable,
)

LEAST_MEAN = 1e-8
"""A smaller mean of rollout weights does not divide them, as in verl."""


class RowRoles(Protocol):
    """The part of a TokenBatch that says which role each row is of."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the roles."""

    @property
    def role(self) -> NDArray[np.int32]:
        """(n_row,) index of each row's role, by row id."""


class RoleLosses:
    """Sends each role's tokens through that role's loss, which is loaded when it is first needed."""

    def __call__(self, rows: RowRoles, inputs: LossInput, plan: UpdatePlan) -> Tensor:
        """(n_sampled,) loss of each token.

        Raises:
            LossError: a loss returned something else than one finite number per token.
        """
        losses = self.compute(rows, inputs, plan)
        self.check_finite(losses, rows, inputs, plan)
        return losses

    def compute(self, rows: RowRoles, inputs: LossInput, plan: UpdatePlan) -> Tensor:
        """Return the same without a check that the numbers are finite, for which the program would wait for a GPU."""
        if len(rows.roles) == 1:
            return self._apply(rows.roles[0], inputs, plan)
        losses = torch.zeros_like(inputs.logprobs)
        for role, chosen in places_by_role(rows, inputs):
            losses = losses.masked_scatter(chosen, self._apply(role, inputs.at(chosen), plan))
        return losses

    def check_finite(self, losses: Tensor, rows: RowRoles, inputs: LossInput, plan: UpdatePlan) -> None:
        """Raise LossError, with the loss and its role, if the result of `compute` is not finite."""
        if torch.isfinite(losses).all():
            return
        for role, chosen in places_by_role(rows, inputs):
            check_finite_losses(losses[chosen], inputs.at(chosen), _loss_name(role, plan))

    def _apply(self, role: str, inputs: LossInput, plan: UpdatePlan) -> Tensor:
        choice = plan.losses[role]
        function = choice.registered.load()
        with failures_as(LossError, _loss_name(role, plan)):
            losses = function(inputs, choice.params)
        checked = check_loss_shape(losses, inputs, _loss_name(role, plan))
        check_loss_gradient(checked, inputs, _loss_name(role, plan))
        return checked


def _loss_name(role: str, plan: UpdatePlan) -> str:
    return f"loss {plan.losses[role].plugin.name!r} for role {role!r}"


def places_by_role(rows: RowRoles, inputs: LossInput) -> Iterator[tuple[str, Tensor]]:
    """Yield each role with a mask of its tokens, (n_sampled,) bool. Roles without a token are skipped."""
    roles = torch.from_numpy(rows.role).to(inputs.row_ids.device)[inputs.row_ids]
    for index, role in enumerate(rows.roles):
        chosen = roles == index
        if chosen.any():
            yield role, chosen


@torch.no_grad()
def clipped_tokens(rows: RowRoles, inputs: LossInput, plan: UpdatePlan) -> Tensor:
    """(n_sampled,) float32: 1 for tokens that are clipped, 0 for others, NaN where the role's loss does not say.

    Raises:
        LossError: what counts the tokens of a loss failed, or returned something else than one bool per token.
    """
    found = torch.full_like(inputs.logprobs, torch.nan, dtype=torch.float32)
    for role, chosen in places_by_role(rows, inputs):
        choice = plan.losses[role]
        if choice.plugin.load_clipped is None:
            continue
        tokens = inputs.at(chosen)
        who = f"`load_clipped` of loss {choice.plugin.name!r} for role {role!r}"
        with failures_as(LossError, who):
            clipped = choice.plugin.load_clipped()(tokens, choice.params)
        if not isinstance(clipped, Tensor) or clipped.dtype != torch.bool or clipped.shape != tokens.logprobs.shape:
            raise LossError(
                "bad-loss-result",
                f"{who} did not return one bool per token.",
                "Return a tensor like inputs.logprobs > bound.",
            )
        found[chosen] = clipped.float()
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class LossTerms:
    """Terms of an `UpdatePlan` in addition to the policy losses. Each is (n_sampled,), or None if the plan omits it."""

    divergence: Tensor | None
    """KL divergence from the reference model; carries a gradient."""
    weights: Tensor | None
    """Rollout weights; no gradient."""
    rejected: Mapping[str, Tensor] = field(default_factory=dict)
    """(n_sampled,) bool by rule, the tokens that it rejects. Their weight is 0."""
    above_cap: Tensor | None = None
    """(n_sampled,) bool, tokens whose ratio to the sampler is above the cap. None without weights by ratio."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ObjectiveParts:
    """The terms of each token's objective, (n_sampled,); None for those that are not asked for."""

    policy: Tensor
    """Corrected by rollout weights."""
    kl: Tensor | None
    entropy: Tensor | None


def loss_terms(inputs: LossInput, plan: UpdatePlan) -> LossTerms:
    """Compute the terms that a plan needs. `inputs` contain its columns."""
    divergence = weights = above_cap = None
    masks: Mapping[str, Tensor] = {}
    if plan.kl is not None:
        divergence = kl_term(inputs, plan.kl.estimator)
    if plan.rollout_correction is not None:
        assert inputs.sampling_logprobs is not None
        correction = plan.rollout_correction
        columns = (inputs.old_logprobs, inputs.sampling_logprobs, inputs.row_ids)
        weights = rollout_weights(*columns, correction)
        if correction.mode is not None:
            ratios = rollout_weights(*columns, replace(correction, cap=math.inf, floor=0.0, mean_weight=1.0))
            above_cap = ratios > correction.cap
        masks = rejected_tokens(inputs, correction)
        weights = weights.masked_fill(merge_masks(masks, weights), 0.0)
    return LossTerms(divergence=divergence, weights=weights, rejected=masks, above_cap=above_cap)


def complete_plan(batch: TokenBatch, plan: UpdatePlan) -> UpdatePlan:
    """Return the plan with the numbers that depend on all tokens of the batch. Call it at the start of an update.

    They are `RolloutCorrection.mean_weight` and the cutoff of the rule `m2po`. Micro-batches and ranks then use the
    same numbers, and a record contains them.
    """
    correction = plan.rollout_correction
    if correction is None or (correction.mean_weight is not None and M2PO not in correction.reject):
        return plan
    assert batch.old_logprobs is not None
    old, sampled = (each[batch.loss_mask].astype(np.float64) for each in (batch.old_logprobs, batch.sampling_logprobs))
    mean = correction.mean_weight
    if mean is None:
        row_ids = torch.from_numpy(np.repeat(np.arange(batch.n_rows), batch.row_lengths)[batch.loss_mask])
        columns = (torch.from_numpy(old), torch.from_numpy(sampled), row_ids)
        mean = _mean_weight(rollout_weights(*columns, replace(correction, mean_weight=1.0)), row_ids, correction)
    rules = dict(correction.reject)
    if isinstance(threshold := rules.get(M2PO), float | int):
        rules[M2PO] = (threshold, m2po_cutoff(log_ratios(old, sampled) ** 2, threshold))
    return replace(plan, rollout_correction=replace(correction, mean_weight=mean, reject=rules))


def rejected_tokens(inputs: LossInput, correction: RolloutCorrection) -> dict[str, Tensor]:
    """(n_sampled,) bool by rule of `RolloutCorrection.reject`, the tokens that it rejects."""
    if not correction.reject:
        return {}
    assert inputs.sampling_logprobs is not None
    columns = (inputs.old_logprobs, inputs.sampling_logprobs, inputs.advantages)
    old, sampled, advantages = (column.detach().double().cpu().numpy() for column in columns)
    _, lengths = torch.unique_consecutive(inputs.row_ids, return_counts=True)
    found = find_rejected_tokens(old, sampled, advantages, lengths.cpu().numpy(), correction.reject)
    return {name: torch.from_numpy(mask).to(inputs.row_ids.device) for name, mask in found.items()}


def merge_masks(masks: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """(n_sampled,) bool, tokens that at least one rule rejects."""
    return sum(masks.values(), torch.zeros_like(like, dtype=torch.bool))


def token_objective(policy_losses: Tensor, terms: LossTerms, entropies: Tensor, plan: UpdatePlan) -> Tensor:
    """Return weight * policy loss + beta * KL - coefficient * entropy, to be minimized.

    Weights apply only to the policy loss: a masked token keeps its KL term and its entropy bonus.

    Args:
        policy_losses: (n_sampled,) result of a `PolicyLoss`.
        terms: terms of the same tokens.
        entropies: (n_sampled,) entropies of the sampling distributions, in nats.
        plan: plan with beta and the entropy coefficient.
    """
    parts = objective_parts(policy_losses, terms, entropies, plan)
    losses = parts.policy if parts.kl is None else parts.policy + parts.kl
    return losses if parts.entropy is None else losses + parts.entropy


def objective_parts(policy_losses: Tensor, terms: LossTerms, entropies: Tensor, plan: UpdatePlan) -> ObjectiveParts:
    """The terms that `token_objective` sums. Arguments as there."""
    kl = None
    if plan.kl is not None and terms.divergence is not None:
        kl = plan.kl.beta * terms.divergence
    return ObjectiveParts(
        policy=policy_losses if terms.weights is None else policy_losses * terms.weights,
        kl=kl,
        entropy=-(plan.entropy_coeff * entropies) if plan.entropy_coeff else None,
    )


def sampled_entropy(inputs: LossInput) -> Tensor:
    """Return (n_sampled,) entropies, each estimated from the sampled token: -rho sg(logprob).

    Use it in backends that see the log-prob of one token but not the distribution. Averaged over samples of the old
    policy, this is the entropy, and its gradient is the entropy's gradient. It equals the gradient of -rho logprob
    without the part -rho grad(logprob), whose average is 0.
    """
    return -importance_ratio(inputs) * inputs.logprobs.detach()


def kl_term(inputs: LossInput, estimator: Literal["k1", "k2", "k3", "k3_unbiased"]) -> Tensor:
    """Return (n_sampled,) KL(policy || reference), estimated by `kl_divergence`, or for `k3_unbiased` by rho k3.

    With rho = exp(logprob - old logprob), the gradient averaged over tokens of the old policy is the gradient of
    KL(policy || reference), while the gradient of k3 is not (DeepSeek-V3.2, arXiv:2512.02556, section 3.1).
    """
    assert inputs.ref_logprobs is not None
    if estimator == "k3_unbiased":
        return importance_ratio(inputs) * kl_divergence(inputs.logprobs, inputs.ref_logprobs, "k3")
    return kl_divergence(inputs.logprobs, inputs.ref_logprobs, estimator)


def kl_divergence(logprobs: Tensor, ref_logprobs: Tensor, estimator: Literal["k1", "k2", "k3"]) -> Tensor:
    """KL(policy || reference) estimated at each sampled token (Schulman 2020, joschu.net/blog/kl-approx.html).

    With d = logprob - reference logprob: k1 is d, k2 is d² / 2, k3 is exp(-d) - 1 + d. Averaged over tokens from the
    policy, k1 and k3 are the divergence, and k2 is close to it while d is small. But a loss uses the gradients. The
    average gradient of k2 is the gradient of KL(policy || reference). The average gradient of k3 is the gradient of
    KL(reference || policy), and the average gradient of k1 is 0 (Tang and Munos 2025, arXiv:2506.09477).

    The value is not clamped (as in TRL). verl clamps k3 to 10, so its gradient is 0 there. Only the exponential must
    stay finite: beyond -d = `MAX_LOG_RATIO` it continues as its tangent, so the gradient still points back.

    Returns:
        (n_sampled,) in nats. The gradient flows to `logprobs`. The value is 0 if both log-probs are -inf, and infinite
        if one log-prob is -inf.
    """
    difference = log_ratio(logprobs, ref_logprobs)
    match estimator:
        case "k1":
            return difference
        case "k2":
            return difference.square() / 2
        case "k3":
            bounded = (-difference).clamp(max=MAX_LOG_RATIO)
            # 0 up to the bound. -difference is the sum of both; written so, inf is never taken from inf.
            beyond = (-difference - MAX_LOG_RATIO).clamp(min=0)
            return bounded.expm1() - bounded + bounded.expm1() * beyond


def rollout_weights(
    old_logprobs: Tensor, sampling_logprobs: Tensor, row_ids: Tensor, correction: RolloutCorrection
) -> Tensor:
    """Truncated importance sampling: how much likelier a token is for the trainer than it was for the sampler.

    The ratio is exp(old logprob - sampling logprob), of each token or multiplied over its row. Above the cap it counts
    as the cap (Ionides 2008, doi:10.1198/106186008X320456) or as 0, below the floor as 0 (0 on both sides is IcePop,
    arXiv:2510.18855). The result is divided by `RolloutCorrection.mean_weight`.

    Args:
        old_logprobs: (n_sampled,) under the trainer's weights at the start of the update.
        sampling_logprobs: (n_sampled,) as the sampler reported them.
        row_ids: (n_sampled,) equal neighbors are one row; rows are whole.
        correction: kind of ratio, bounds and mean. If the mean is None, the given tokens are the whole batch.

    Returns:
        (n_sampled,) in [0, cap / mean], finite for any log-probs but NaN, without gradient. A token that both call
        impossible (-inf) has the ratio 1. A row that the trainer calls impossible has the ratio 0.
    """
    with torch.no_grad():
        if correction.mode is None:
            return torch.ones_like(old_logprobs)
        logs = log_ratio(old_logprobs, sampling_logprobs)
        if correction.mode == "sequence":
            logs = _row_sums(summable(logs), row_ids)
        # An exponential that overflows is above every cap.
        ratios = logs.exp()
        beyond = correction.cap if correction.beyond_cap == "truncate" else 0.0
        weights = torch.where(ratios > correction.cap, beyond, ratios)
        weights = torch.where(ratios < correction.floor, 0.0, weights)
        mean = correction.mean_weight
        return weights / (_mean_weight(weights, row_ids, correction) if mean is None else mean)


def _mean_weight(weights: Tensor, row_ids: Tensor, correction: RolloutCorrection) -> float:
    """Return the mean of the tokens' weights, or of the rows' weights. 1 if the mean is almost 0, as in verl."""
    if correction.mode == "sequence" and len(weights):
        _, lengths = torch.unique_consecutive(row_ids, return_counts=True)
        weights = weights[lengths.cumsum(0) - 1]
    mean = float(weights.mean()) if len(weights) else 1.0
    return mean if mean > LEAST_MEAN else 1.0


def value_loss(values: Tensor, returns: Tensor, old_values: Tensor, clip: float | None) -> Tensor:
    """Return (v - R)² / 2. With `clip`, return its maximum with the same loss for v clipped around the old value.

    Schulman et al. 2015, arXiv:1506.02438. The clipped form comes from OpenAI Baselines' ppo2.

    Args:
        values: (n_sampled,) the critic's estimates. The gradient flows to them.
        returns: (n_sampled,) targets. NaN if a token has no target.
        old_values: (n_sampled,) estimates at the start of the update.
        clip: maximum distance of the clipped value from the old value. None for no clipping.

    Returns:
        (n_sampled,) losses. Exactly 0 with gradient 0 for tokens without a target.
    """
    known = ~returns.isnan()
    targets = torch.where(known, returns, 0.0)
    losses = (values - targets).square() / 2
    if clip is not None:
        near = torch.minimum(torch.maximum(values, old_values - clip), old_values + clip)
        losses = torch.maximum(losses, (near - targets).square() / 2)
    return torch.where(known, losses, 0.0)


def _row_sums(values: Tensor, row_ids: Tensor) -> Tensor:
    """(n_sampled,) the sum over each token's row, in an order of adding that is the same every time."""
    _, of_token, lengths = torch.unique_consecutive(row_ids, return_inverse=True, return_counts=True)
    return torch.segment_reduce(values, "sum", lengths=lengths)[of_token] if len(values) else values


LEAST_TAIL = 1e-7
"""Smallest probability of all tokens outside the k tokens, as in TRL."""


def generalized_jsd(logprobs: Tensor, targets: Tensor, beta: float) -> Tensor:
    """Return the divergence of each row, (n,), in nats.

    p is the target, q is the model, and m = beta p + (1 - beta) q. The result is beta KL(p || m) + (1 - beta)
    KL(q || m). With beta 0 it is KL(p || q), and with beta 1 it is KL(q || p). Formula: Agarwal et al., On-Policy
    Distillation of Language Models, 2024, arXiv:2306.13649.

    Args:
        logprobs: (n, k) log-probs of the model in nats, with a gradient.
        targets: (n, k) log-probs of the target, finite.
        beta: from 0 to 1.
    """
    if beta == 0:
        return _kl(targets, logprobs)
    if beta == 1:
        return _kl(logprobs, targets)
    mixture = torch.logaddexp(logprobs + math.log1p(-beta), targets + math.log(beta))
    return beta * _kl(targets, mixture) + (1 - beta) * _kl(logprobs, mixture)


def with_tail(logprobs: Tensor) -> Tensor:
    """Return (n, k + 1) log-probs: of k tokens, and of all other tokens together.

    Args:
        logprobs: (n, k) log-probs in nats of k different tokens.
    """
    inside = logprobs.logsumexp(dim=-1, keepdim=True).clamp(max=-LEAST_TAIL)
    return torch.cat((logprobs, torch.log(-torch.expm1(inside))), dim=-1)


def _kl(left: Tensor, right: Tensor) -> Tensor:
    return (left.exp() * (left - right)).sum(dim=-1)
