"""Losses for tokens that older weights sampled: vespo, topr, ipo, reinforce_kl and fipo.

Each but fipo measures from the policy that sampled if its log-probs are known, so the loss corrects for that policy
itself. A row is a trajectory, or one segment of it if its history was rewritten.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rllm_core.contracts.loss import LossInput
from rllm_core.updates.losses import MAX_LOG_RATIO, clipped_surrogate, importance_ratio, log_ratio, surrogate_clipped
from rllm_estimators.loss_options import FipoParams, IpoParams, ReinforceKlParams, ToprParams, VespoParams
from rllm_estimators.loss_rows import Rows
from rllm_estimators.losses_weighted import anchored, squared_log_ratio

MIN_LOG_ROW_RATIO = math.log(1e-8)
"""Smallest log-ratio of a row in `vespo`, as in TRL."""


def vespo(inputs: LossInput, params: VespoParams) -> Tensor:
    """-sg(phi) A logprob, phi = exp(lambda + k log W - lambda W), W the product of rho over the row.

    (k, lambda) depend on the sign of A. phi is 1 at W = 1 and goes to 0 on both sides. Use it for tokens that are
    several versions old. VESPO, arXiv:2602.10693; equal to TRL's `get_gamma_weights`.
    """
    inputs = anchored(inputs)
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
    weight = _taper(inputs, params).clamp(max=1.0).masked_fill(inputs.advantages > 0, 1.0)
    return -weight * inputs.advantages * inputs.logprobs


def topr_clipped(inputs: LossInput, params: ToprParams) -> Tensor:
    """(n_sampled,) bool, tokens without a positive advantage whose ratio is above 1."""
    return (inputs.advantages <= 0) & (_taper(inputs, params) > 1)


def _taper(inputs: LossInput, params: ToprParams) -> Tensor:
    inputs = anchored(inputs)
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
    inputs = anchored(inputs)
    return -inputs.advantages * importance_ratio(inputs) * kept + squared_log_ratio(inputs, params.kl_tau)


def ipo_clipped(inputs: LossInput, params: IpoParams) -> Tensor:
    """(n_sampled,) bool, tokens whose probability moved further than max_divergence."""
    inputs = anchored(inputs)
    return (inputs.logprobs.detach().exp() - inputs.old_logprobs.exp()).abs() > params.max_divergence


def reinforce_kl(inputs: LossInput, params: ReinforceKlParams) -> Tensor:
    """-sg(rho) A logprob + bwd_kl_coef (rho - 1 - log rho) + fwd_kl_coef (rho log rho - rho + 1).

    rho is the ratio to the sampler, and `ratio_clamp_min` and `ratio_clamp_max` bound it in the first term only. The KL
    terms pull the policy back to the sampler instead of clipping. rLLM, pull request 746.
    """
    inputs = anchored(inputs)
    ratio = importance_ratio(inputs)
    losses = -_clamped(ratio, params).detach() * inputs.advantages * inputs.logprobs
    if params.bwd_kl_coef:
        losses = losses + params.bwd_kl_coef * (ratio - 1 - ratio.log())
    if params.fwd_kl_coef:
        losses = losses + params.fwd_kl_coef * (ratio * ratio.log() - ratio + 1)
    return losses


def reinforce_kl_clipped(inputs: LossInput, params: ReinforceKlParams) -> Tensor:
    """(n_sampled,) bool, tokens whose importance weight is not their ratio."""
    ratio = importance_ratio(anchored(inputs))
    return ratio != _clamped(ratio, params)


def _clamped(ratio: Tensor, params: ReinforceKlParams) -> Tensor:
    if params.ratio_clamp_min is None and params.ratio_clamp_max is None:
        return ratio
    return ratio.clamp(params.ratio_clamp_min, params.ratio_clamp_max)


def fipo(inputs: LossInput, params: FipoParams) -> Tensor:
    """PPO's clipped surrogate with A sg(clip(exp(F), 1, 1 + max_influence)) instead of A.

    F is the sum of the log-ratios from the token to the end of its row, discounted by 2^(-1 / half_life) per token. A
    token counts more if the update makes the continuation likelier. Use it for long reasoning.
    FIPO, arXiv:2603.19835, with the bounds of its recipes; tokens with extreme ratios are not filtered.
    """
    return clipped_surrogate(importance_ratio(inputs), _influenced(inputs, params), *params.eps_low_high)


def fipo_clipped(inputs: LossInput, params: FipoParams) -> Tensor:
    """(n_sampled,) bool, tokens of which the surrogate takes the clipped value."""
    return surrogate_clipped(importance_ratio(inputs), inputs.advantages, *params.eps_low_high)


def _influenced(inputs: LossInput, params: FipoParams) -> Tensor:
    """(n_sampled,) advantages times the token's influence."""
    log_ratios = log_ratio(inputs.logprobs.detach(), inputs.old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    future = Rows.from_row_ids(inputs.row_ids).discounted(log_ratios, 2 ** (-1 / params.half_life))
    influence = future.clamp(max=MAX_LOG_RATIO).exp().clamp(1.0, 1.0 + params.max_influence)
    return inputs.advantages * influence
