"""The core's policy losses, one torch function each. They return the loss of every sampled token, to be minimized.

They need torch. Only these import them: backends, loss plugins, tools for losses (`rllm record check`, the loss
contract), and the `load` of the plugin specs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rllm_core.algorithms.options import PpoParams
from rllm_core.contracts.loss import LossInput
from rllm_core.contracts.params import NoParams
from rllm_core.errors import LossError

MAX_LOG_RATIO = 20.0
"""Keeps exp() finite. A ratio this large is already clipped, or the result of an earlier error."""


def ppo(inputs: LossInput, params: PpoParams) -> Tensor:
    """Clipped surrogate: max(-A rho, -A clip(rho, 1 - eps_clip, 1 + eps_clip_high)).

    Schulman et al. 2017, arXiv:1707.06347. With `clip_ratio_c`, the loss is at most -A clip_ratio_c if A < 0. Otherwise
    a bad token that became much more likely would dominate the loss (dual clip, Ye et al. 2019, arXiv:1912.09729).
    """
    losses = clipped_surrogate(importance_ratio(inputs), inputs.advantages, *params.eps_low_high)
    if params.clip_ratio_c is None:
        return losses
    # For A >= 0 no bound is needed, and the bound would be the smaller value.
    bound = -inputs.advantages * params.clip_ratio_c
    return torch.where(inputs.advantages < 0, torch.minimum(losses, bound), losses)


def ppo_clipped(inputs: LossInput, params: PpoParams) -> Tensor:
    """Return the tokens, (n_sampled,) bool, that `ppo` clips, including the dual clip."""
    ratio = importance_ratio(inputs)
    clipped = surrogate_clipped(ratio, inputs.advantages, *params.eps_low_high)
    if params.clip_ratio_c is None:
        return clipped
    return clipped | ((inputs.advantages < 0) & (ratio > params.clip_ratio_c))


def importance_sampling(inputs: LossInput, params: NoParams) -> Tensor:
    """Compute -A rho with rho = exp(logprob - old logprob). It is unbiased off-policy and has no trust region."""
    return -inputs.advantages * importance_ratio(inputs)


def reinforce(inputs: LossInput, params: NoParams) -> Tensor:
    """Compute -A logprob (Williams 1992)."""
    return -inputs.advantages * inputs.logprobs


def log_ratio(logprobs: Tensor, others: Tensor) -> Tensor:
    """Return logprob - other logprob, (n,). It is 0 if both are -inf, because two equal probabilities have the ratio
    1."""
    both_impossible = logprobs.isneginf() & others.isneginf()
    return (logprobs - others).masked_fill(both_impossible, 0.0)


def summable(log_ratios: Tensor) -> Tensor:
    """Return log-ratios, (n,), with infinite values replaced by finite numbers that dominate any sum of other
    log-ratios.

    -inf dominates inf: if one policy considers a row impossible, its ratio is 0 for any other tokens.
    """
    return log_ratios.clamp(-1e9, 1e5)


def importance_ratio(inputs: LossInput) -> Tensor:
    """Return rho = exp(logprob - old logprob). The exponent is bounded first."""
    return log_ratio(inputs.logprobs, inputs.old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def clipped_surrogate(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """Compute max(-A ratio, -A clip(ratio, 1 - low, 1 + high))."""
    return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high))


def surrogate_clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """Return the tokens, (n_sampled,) bool, for which `clipped_surrogate` uses the clipped value.

    These are ratios above 1 + high if A > 0, and below 1 - low if A < 0. verl reports their share as
    ``actor/pg_clipfrac``, TRL as ``clip_ratio/region_mean``.
    """
    return ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & (ratio < 1 - low))


def check_token_losses(losses: object, inputs: LossInput, who: str) -> Tensor:
    """Return the result of a policy loss after checking that it is one finite number per token, with a gradient.

    Raises:
        LossError: the result is different. For example, a mean would silently give every token the same weight.
    """
    checked = check_loss_shape(losses, inputs, who)
    check_finite_losses(checked, inputs, who)
    check_loss_gradient(checked, inputs, who)
    return checked


def check_loss_shape(losses: object, inputs: LossInput, who: str) -> Tensor:
    """Return the result of a policy loss, or raise LossError if it is not one number per sampled token."""
    if isinstance(losses, Tensor) and losses.shape == inputs.logprobs.shape:
        return losses
    found = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
    raise LossError(
        "bad-loss-result",
        f"{who} returned {found}; needed is {tuple(inputs.logprobs.shape)}, one loss per sampled token.",
        "Return the loss of each token. rllm.algorithm.loss_agg_mode aggregates them.",
    )


def check_loss_gradient(losses: Tensor, inputs: LossInput, who: str) -> None:
    """Raise LossError if the losses have no gradient and the log-probs have one."""
    if inputs.logprobs.requires_grad and not losses.requires_grad:
        raise LossError(
            "loss-without-gradient",
            f"{who} does not depend on the log-probs: nothing would be learnt from it.",
            "Let a gradient reach inputs.logprobs; detach the weights of a token and not the token itself.",
        )


def check_finite_losses(losses: Tensor, inputs: LossInput, who: str) -> None:
    """Raise LossError if a loss is not finite. The program waits for the device of the losses, (n_sampled,)."""
    if torch.isfinite(losses).all():
        return
    largest = float(inputs.advantages.abs().max())
    raise LossError(
        "loss-not-finite",
        f"{who} returned {int((~torch.isfinite(losses)).sum())} losses that are NaN or infinite.",
        "Bound ratios before exponentiating, and guard divisions. "
        f"The largest advantage is {largest:.3g}: if it is too large, scale the rewards down.",
    )
