"""Losses that replace or add to PPO's clip by a weight of each token.

The losses cispo, dppo_tv and dppo_kl are -A logprob times a weight without a gradient. So they never pull a token back
towards the old policy: its gradient only becomes smaller, or zero. sapo keeps the policy near the old one by a gate,
dro by a quadratic term.

vespo, topr, ipo, reinforce_kl and fipo are for tokens that older weights sampled. All except fipo compute the ratio to
the sampling policy if its log-probs are known. So these losses already correct for the sampling policy. A row is a
trajectory, or one segment of it if its history was rewritten.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from rllm_core.contracts.loss import LossInput
from rllm_core.updates.losses import MAX_LOG_RATIO, clipped_surrogate, importance_ratio, log_ratio, surrogate_clipped
from rllm_estimators.loss_rows import Rows
from rllm_estimators.options import (
    CispoParams,
    DppoParams,
    DroParams,
    FipoParams,
    IpoParams,
    ReinforceKlParams,
    SapoParams,
    ToprParams,
    VespoParams,
)

MIN_LOG_ROW_RATIO = math.log(1e-8)
"""Smallest log-ratio of a row in `vespo`, as in TRL."""


def sapo(inputs: LossInput, params: SapoParams) -> Tensor:
    """-A sigmoid(tau (rho - 1)) 4 / tau, with tau_positive if A > 0 and tau_negative otherwise.

    The gradient is the gradient of importance sampling times 4 s (1 - s), and s is the sigmoid. The factor is 1 at
    rho = 1 and decays on both sides. Gao et al. 2025, arXiv:2511.20347. This is the value of one token. The paper
    averages over each sequence and then over sequences: ``rllm.algorithm.loss_agg_mode=seq-mean-token-mean``.
    """
    tau = torch.full_like(inputs.advantages, params.tau_negative)
    tau = tau.masked_fill(inputs.advantages > 0, params.tau_positive)
    return -inputs.advantages * torch.sigmoid(tau * (importance_ratio(inputs) - 1)) * (4 / tau)


def dro(inputs: LossInput, params: DroParams) -> Tensor:
    """-(A logprob - beta / 2 (logprob - old logprob)^2): per token, best where the log-ratio is A / beta.

    After Richemond et al. 2024, arXiv:2405.19107, without its value function: the advantage is given.
    """
    distance = log_ratio(inputs.logprobs, inputs.old_logprobs)
    return -inputs.advantages * inputs.logprobs + 0.5 * params.beta * distance.square()


def cispo(inputs: LossInput, params: CispoParams) -> Tensor:
    """-sg(clip(rho, 1 - eps_clip, 1 + eps_clip_high)) A logprob: every token keeps a gradient, of bounded weight.

    MiniMax 2025, arXiv:2506.13585. `eps_clip_high` is relative to 1, as in every loss here; in TRL the key of that
    meaning is the bound itself.
    """
    low, high = params.eps_low_high
    weight = importance_ratio(inputs).clamp(1 - low, 1 + high).detach()
    return -weight * inputs.advantages * inputs.logprobs


def cispo_clipped(inputs: LossInput, params: CispoParams) -> Tensor:
    """(n_sampled,) bool, tokens with a ratio out of bounds, whatever their advantage."""
    low, high = params.eps_low_high
    ratio = importance_ratio(inputs)
    return (ratio < 1 - low) | (ratio > 1 + high)


def dppo_tv(inputs: LossInput, params: DppoParams) -> Tensor:
    """-A sg(min(rho, clip_ratio_c)) logprob, while the sampled token's probability p is near enough to its old one q.

    Followed are tokens with p - q <= max_divergence_high where A > 0, and p - q >= -max_divergence elsewhere: |p - q|
    is the total variation between the two policies seen as "this token or another". Qi et al. 2026, arXiv:2602.04879;
    as there the old policy is the one that sampled, where its log-probs are known, so rho corrects for it as well.
    `kl_tau` adds kl_tau log(rho)^2 to every token, also to those that are not followed (prime-rl).
    """
    inputs = anchor_to_sampler(inputs)
    return _follow(inputs, _is_near_by_variation(inputs, params), params) + squared_log_ratio(inputs, params.kl_tau)


def dppo_tv_clipped(inputs: LossInput, params: DppoParams) -> Tensor:
    """(n_sampled,) bool, tokens that `dppo_tv` does not follow, or follows with a weight that is cut off."""
    inputs = anchor_to_sampler(inputs)
    return ~_is_near_by_variation(inputs, params) | (importance_ratio(inputs) > params.clip_ratio_c)


def dppo_kl(inputs: LossInput, params: DppoParams) -> Tensor:
    """As `dppo_tv`, while KL(q, p) of "this token or another" is small enough.

    At most max_divergence_high where A > 0, and max_divergence elsewhere. Tokens that are about to come back (p <= q
    where A > 0, p >= q elsewhere) are followed however far away they are. Qi et al. 2026, arXiv:2602.04879.
    """
    inputs = anchor_to_sampler(inputs)
    return _follow(inputs, _is_near_by_divergence(inputs, params), params) + squared_log_ratio(inputs, params.kl_tau)


def dppo_kl_clipped(inputs: LossInput, params: DppoParams) -> Tensor:
    """(n_sampled,) bool, tokens that `dppo_kl` does not follow, or follows with a weight that is cut off."""
    inputs = anchor_to_sampler(inputs)
    return ~_is_near_by_divergence(inputs, params) | (importance_ratio(inputs) > params.clip_ratio_c)


def _is_near_by_variation(inputs: LossInput, params: DppoParams) -> Tensor:
    low, high = params.low_high
    with torch.no_grad():
        change = inputs.logprobs.exp() - inputs.old_logprobs.exp()
        return torch.where(inputs.advantages > 0, change <= high, change >= -low)


def _is_near_by_divergence(inputs: LossInput, params: DppoParams) -> Tensor:
    low, high = params.low_high
    with torch.no_grad():
        change = log_ratio(inputs.logprobs, inputs.old_logprobs)
        old, new_others, old_others = (
            inputs.old_logprobs.exp(),
            _other_probability(inputs.logprobs),
            _other_probability(inputs.old_logprobs),
        )
        # q log(q / p) is 0 where q is 0, however small p is.
        own = (-old * change).masked_fill(old == 0, 0.0)
        divergence = own + old_others * (old_others / new_others).log()
        up, down = (divergence <= high) | (change <= 0), (divergence <= low) | (change >= 0)
        return torch.where(inputs.advantages > 0, up, down)


def vespo(inputs: LossInput, params: VespoParams) -> Tensor:
    """-sg(phi) A logprob, phi = exp(lambda + k log W - lambda W), W the product of rho over the row.

    (k, lambda) depend on the sign of A. phi is 1 at W = 1 and goes to 0 on both sides. Use it for tokens that are
    several versions old. VESPO, arXiv:2602.10693; equal to TRL's `get_gamma_weights`.
    """
    inputs = anchor_to_sampler(inputs)
    with torch.no_grad():
        log_ratios = log_ratio(inputs.logprobs, inputs.old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        log_weight = Rows.from_row_ids(inputs.row_ids).sum(log_ratios).clamp(MIN_LOG_ROW_RATIO, MAX_LOG_RATIO)
        is_positive = inputs.advantages >= 0
        power = torch.where(is_positive, params.k_positive, params.k_negative)
        decay = torch.where(is_positive, params.lambda_positive, params.lambda_negative)
        phi = (decay + power * log_weight - decay * log_weight.exp()).exp()
    return -phi.to(inputs.logprobs.dtype) * inputs.advantages * inputs.logprobs


def topr(inputs: LossInput, params: ToprParams) -> Tensor:
    """-A logprob if A > 0, otherwise -sg(clip(ratio, 0, 1)) A logprob.

    Good responses are imitated, and bad ones are suppressed only while the policy still gives them. Use it if much of
    a batch failed or is old. TOPR, Le Roux et al. 2025, arXiv:2503.14286: the ratio is the row's product.
    """
    weight = _clipped_ratio(inputs, params).clamp(max=1.0).masked_fill(inputs.advantages > 0, 1.0)
    return -weight * inputs.advantages * inputs.logprobs


def topr_clipped(inputs: LossInput, params: ToprParams) -> Tensor:
    """(n_sampled,) bool, tokens without a positive advantage whose ratio is above 1."""
    return (inputs.advantages <= 0) & (_clipped_ratio(inputs, params) > 1)


def _clipped_ratio(inputs: LossInput, params: ToprParams) -> Tensor:
    inputs = anchor_to_sampler(inputs)
    log_ratios = log_ratio(inputs.logprobs.detach(), inputs.old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if params.level == "sequence":
        log_ratios = Rows.from_row_ids(inputs.row_ids).sum(log_ratios).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return log_ratios.exp()


def ipo(inputs: LossInput, params: IpoParams) -> Tensor:
    """-A rho if |p - q| <= max_divergence, otherwise 0; kl_tau log(rho)^2 is added to every token (prime-rl).

    p is the token's probability, q the probability that the sampler gave it. Unlike `dppo_tv`, tokens that moved too
    far are not trained on for either sign of A.
    """
    kept = ~ipo_clipped(inputs, params)
    inputs = anchor_to_sampler(inputs)
    return -inputs.advantages * importance_ratio(inputs) * kept + squared_log_ratio(inputs, params.kl_tau)


def ipo_clipped(inputs: LossInput, params: IpoParams) -> Tensor:
    """(n_sampled,) bool, tokens whose probability moved further than max_divergence."""
    inputs = anchor_to_sampler(inputs)
    return (inputs.logprobs.detach().exp() - inputs.old_logprobs.exp()).abs() > params.max_divergence


def reinforce_kl(inputs: LossInput, params: ReinforceKlParams) -> Tensor:
    """-sg(rho) A logprob + bwd_kl_coef (rho - 1 - log rho) + fwd_kl_coef (rho log rho - rho + 1).

    rho is the ratio to the sampler, and `ratio_clamp_min` and `ratio_clamp_max` bound it in the first term only. The KL
    terms pull the policy back to the sampler instead of clipping. rLLM, pull request 746.
    """
    inputs = anchor_to_sampler(inputs)
    ratio = importance_ratio(inputs)
    losses = -_clamp_ratio(ratio, params).detach() * inputs.advantages * inputs.logprobs
    if params.bwd_kl_coef:
        losses = losses + params.bwd_kl_coef * (ratio - 1 - ratio.log())
    if params.fwd_kl_coef:
        losses = losses + params.fwd_kl_coef * (ratio * ratio.log() - ratio + 1)
    return losses


def reinforce_kl_clipped(inputs: LossInput, params: ReinforceKlParams) -> Tensor:
    """(n_sampled,) bool, tokens whose importance weight is not their ratio."""
    ratio = importance_ratio(anchor_to_sampler(inputs))
    return ratio != _clamp_ratio(ratio, params)


def _clamp_ratio(ratio: Tensor, params: ReinforceKlParams) -> Tensor:
    if params.ratio_clamp_min is None and params.ratio_clamp_max is None:
        return ratio
    return ratio.clamp(params.ratio_clamp_min, params.ratio_clamp_max)


def fipo(inputs: LossInput, params: FipoParams) -> Tensor:
    """PPO's clipped surrogate with A sg(clip(exp(F), 1, 1 + max_influence)) instead of A.

    F is the sum of the log-ratios from the token to the end of its row, discounted by 2^(-1 / half_life) per token. A
    token counts more if the update makes the continuation likelier. Use it for long reasoning.
    FIPO, arXiv:2603.19835, with the bounds of its recipes; tokens with extreme ratios are not filtered.
    """
    return clipped_surrogate(importance_ratio(inputs), _scale_advantages(inputs, params), *params.eps_low_high)


def fipo_clipped(inputs: LossInput, params: FipoParams) -> Tensor:
    """(n_sampled,) bool, tokens of which the surrogate takes the clipped value."""
    return surrogate_clipped(importance_ratio(inputs), inputs.advantages, *params.eps_low_high)


def _scale_advantages(inputs: LossInput, params: FipoParams) -> Tensor:
    """(n_sampled,) advantages times the token's influence."""
    log_ratios = log_ratio(inputs.logprobs.detach(), inputs.old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    future = Rows.from_row_ids(inputs.row_ids).discounted(log_ratios, 2 ** (-1 / params.half_life))
    influence = future.clamp(max=MAX_LOG_RATIO).exp().clamp(1.0, 1.0 + params.max_influence)
    return inputs.advantages * influence


def anchor_to_sampler(inputs: LossInput) -> LossInput:
    """With the log-probs of the policy that sampled as the old ones, where they are known."""
    sampled = inputs.sampling_logprobs
    if sampled is None:
        return inputs
    return replace(inputs, old_logprobs=torch.where(sampled.isnan(), inputs.old_logprobs, sampled))


def squared_log_ratio(inputs: LossInput, weight: float) -> Tensor | float:
    """(n_sampled,) weight log(rho)^2 of every token, or 0 for a weight of 0."""
    if not weight:
        return 0.0
    return weight * log_ratio(inputs.logprobs, inputs.old_logprobs).square()


def _other_probability(logprobs: Tensor) -> Tensor:
    """The probability of all other tokens together, to full precision where it is tiny; never 0, as it divides."""
    return (-logprobs.expm1()).clamp(min=1e-8)


def _follow(inputs: LossInput, keep: Tensor, params: DppoParams) -> Tensor:
    weight = importance_ratio(inputs).clamp(max=params.clip_ratio_c).detach()
    return -inputs.advantages * weight * keep * inputs.logprobs
