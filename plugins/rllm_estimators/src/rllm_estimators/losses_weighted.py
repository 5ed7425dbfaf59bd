"""Losses without PPO's clip.

The gradient of cispo, dppo_tv and dppo_kl is -A logprob times a weight. The weight carries no gradient,
so no token is pulled back towards the old policy: it is followed less, or not at all. sapo keeps the policy near the
old one by a gate, dro by a quadratic.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from rllm_core.contracts.loss import LossInput
from rllm_core.updates.losses import importance_ratio, log_ratio
from rllm_estimators.loss_options import CispoParams, DppoParams, DroParams, SapoParams


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
    inputs = anchored(inputs)
    return _truncated(inputs, _near_by_variation(inputs, params), params) + squared_log_ratio(inputs, params.kl_tau)


def dppo_tv_clipped(inputs: LossInput, params: DppoParams) -> Tensor:
    """(n_sampled,) bool, tokens that `dppo_tv` does not follow, or follows with a weight that is cut off."""
    inputs = anchored(inputs)
    return ~_near_by_variation(inputs, params) | (importance_ratio(inputs) > params.clip_ratio_c)


def dppo_kl(inputs: LossInput, params: DppoParams) -> Tensor:
    """As `dppo_tv`, while KL(q, p) of "this token or another" is small enough.

    At most max_divergence_high where A > 0, and max_divergence elsewhere. Tokens that are about to come back (p <= q
    where A > 0, p >= q elsewhere) are followed however far away they are. Qi et al. 2026, arXiv:2602.04879.
    """
    inputs = anchored(inputs)
    return _truncated(inputs, _near_by_divergence(inputs, params), params) + squared_log_ratio(inputs, params.kl_tau)


def dppo_kl_clipped(inputs: LossInput, params: DppoParams) -> Tensor:
    """(n_sampled,) bool, tokens that `dppo_kl` does not follow, or follows with a weight that is cut off."""
    inputs = anchored(inputs)
    return ~_near_by_divergence(inputs, params) | (importance_ratio(inputs) > params.clip_ratio_c)


def _near_by_variation(inputs: LossInput, params: DppoParams) -> Tensor:
    low, high = params.low_high
    with torch.no_grad():
        change = inputs.logprobs.exp() - inputs.old_logprobs.exp()
        return torch.where(inputs.advantages > 0, change <= high, change >= -low)


def _near_by_divergence(inputs: LossInput, params: DppoParams) -> Tensor:
    low, high = params.low_high
    with torch.no_grad():
        change = log_ratio(inputs.logprobs, inputs.old_logprobs)
        old, new_others, old_others = inputs.old_logprobs.exp(), _others(inputs.logprobs), _others(inputs.old_logprobs)
        # q log(q / p) is 0 where q is 0, however small p is.
        own = (-old * change).masked_fill(old == 0, 0.0)
        divergence = own + old_others * (old_others / new_others).log()
        up, down = (divergence <= high) | (change <= 0), (divergence <= low) | (change >= 0)
        return torch.where(inputs.advantages > 0, up, down)


def anchored(inputs: LossInput) -> LossInput:
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


def _others(logprobs: Tensor) -> Tensor:
    """The probability of all other tokens together, to full precision where it is tiny; never 0, as it divides."""
    return (-logprobs.expm1()).clamp(min=1e-8)


def _truncated(inputs: LossInput, keep: Tensor, params: DppoParams) -> Tensor:
    weight = importance_ratio(inputs).clamp(max=params.clip_ratio_c).detach()
    return -inputs.advantages * weight * keep * inputs.logprobs
