"""Losses with one importance ratio per sequence: gspo, gmpo and a2po.

gspo and gmpo are the papers' with seq-mean-token-mean, a2po with seq-mean-token-sum.

A sequence is a row of the batch: a trajectory, or one segment of it where its history was rewritten.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rllm_core.contracts.loss import LossInput
from rllm_core.updates.losses import MAX_LOG_RATIO, clipped_surrogate, log_ratio, summable, surrogate_clipped
from rllm_estimators.loss_rows import Rows
from rllm_estimators.options import A2poLossParams, GmpoParams, GspoParams


def gspo(inputs: LossInput, params: GspoParams) -> Tensor:
    """max(-A s, -A clip(s, 1 - sequence_eps_clip, 1 + sequence_eps_clip_high)), s = exp(row's mean log-ratio).

    Zheng et al. 2025, arXiv:2507.18071, in the form per token (GSPO-token): every token has the value of its row, but
    the gradient flows only through the token's log-prob, s = sg(s) exp(logprob - sg(logprob)). With
    ``rllm.algorithm.loss_agg_mode=seq-mean-token-mean`` this is the paper's objective and gradient. Other modes weight
    sequences by their length. A sequence's ratio is far nearer to 1 than a token's ratio, so the paper's bounds are
    tighter too.
    """
    own_gradient = log_ratio(inputs.logprobs, inputs.logprobs.detach())
    ratio = (_mean_log_ratio(inputs) + own_gradient).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return clipped_surrogate(ratio, inputs.advantages, params.sequence_eps_clip, params.sequence_eps_clip_high)


def gspo_clipped(inputs: LossInput, params: GspoParams) -> Tensor:
    """(n_sampled,) bool, tokens of rows that `gspo` clips."""
    ratio = _mean_log_ratio(inputs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return surrogate_clipped(ratio, inputs.advantages, params.sequence_eps_clip, params.sequence_eps_clip_high)


def _mean_log_ratio(inputs: LossInput) -> Tensor:
    """(n_sampled,) the mean over the token's row, without gradient."""
    return Rows.from_row_ids(inputs.row_ids).mean(summable(log_ratio(inputs.logprobs.detach(), inputs.old_logprobs)))


def gmpo(inputs: LossInput, params: GmpoParams) -> Tensor:
    """-A times the geometric mean of the row's clipped ratios. Every token has the loss of its row.

    Each token's log-ratio is clipped before the average: at log_ratio_clip_high if A > 0, and at -log_ratio_clip if
    A < 0 (the side that would gain). A is the row's mean advantage. Zhao et al. 2025, arXiv:2507.20673.
    With ``rllm.algorithm.loss_agg_mode=seq-mean-token-mean`` this is the paper's objective. Other modes weight
    sequences by their length.
    """
    rows = Rows.from_row_ids(inputs.row_ids)
    low, high = params.low_high
    log_ratios = log_ratio(inputs.logprobs, inputs.old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    sign = inputs.advantages.sign()
    held_back = sign * torch.minimum(sign * log_ratios, sign * log_ratios.clamp(-low, high))
    return -rows.mean(inputs.advantages) * rows.mean(held_back).exp()


def gmpo_clipped(inputs: LossInput, params: GmpoParams) -> Tensor:
    """(n_sampled,) bool, tokens with a log-ratio that `gmpo` cuts."""
    low, high = params.low_high
    log_ratios = log_ratio(inputs.logprobs, inputs.old_logprobs)
    return ((inputs.advantages > 0) & (log_ratios > high)) | ((inputs.advantages < 0) & (log_ratios < -low))


def a2po(inputs: LossInput, params: A2poLossParams) -> Tensor:
    """(beta S - A)^2 / number of the row's tokens, S = sum over the row of logprob - reference logprob.

    The policy is regressed on exp(A / beta) times the reference model, so nothing is clipped. A is the row's mean
    advantage. Use it with estimator `a2po` to stay close to the reference model. A*-PO, Brantley et al. 2025,
    arXiv:2505.20686. With ``rllm.algorithm.loss_agg_mode=seq-mean-token-sum`` this is the paper's mean over responses.
    """
    assert inputs.ref_logprobs is not None
    rows = Rows.from_row_ids(inputs.row_ids)
    log_ratios = log_ratio(inputs.logprobs, inputs.ref_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    distance = params.beta * rows.sum(log_ratios) - rows.mean(inputs.advantages)
    return distance.square() / rows.lengths[rows.of_token]
