"""Losses that hold the policy near the old one without a clip: sapo by a gate, dro by a quadratic."""

from __future__ import annotations

import torch
from torch import Tensor

from rllm_core.contracts.loss import LossInput
from rllm_core.updates.losses import importance_ratio, log_ratio
from rllm_estimators.loss_options import DroParams, SapoParams


def sapo(inputs: LossInput, params: SapoParams) -> Tensor:
    """-A sigmoid(tau (rho - 1)) 4 / tau, with tau_positive where A > 0 and tau_negative elsewhere.

    The gradient is that of importance sampling times 4 s (1 - s), s the sigmoid: 1 at rho = 1, fading on both sides.
    Gao et al. 2025, arXiv:2511.20347; the value of one token. The paper averages over each sequence and then over
    sequences: ``rllm.algorithm.loss_agg_mode=seq-mean-token-mean``.
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
