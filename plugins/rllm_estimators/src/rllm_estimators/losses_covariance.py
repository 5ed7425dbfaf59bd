"""Losses that spare the tokens which cost the most entropy: kl_cov and clip_cov.

Cui et al. 2025, arXiv:2505.22617: entropy falls with the covariance of log-prob and advantage, and a small share of
tokens makes up most of it. There they are chosen among all tokens of the batch. Here every row chooses its own, as a
choice among the tokens that happen to share a micro-batch would make the gradient depend on how rows are cut into
micro-batches. Three things follow, and they are our decision:

- The covariance of a token is A (logprob - mean logprob of its row). The advantage is taken as centred, which it is
  over a group; over a row it is constant for most estimators, and to centre it there would leave nothing.
- A row of n tokens chooses share * n of them, rounded up or down at random so that the share is right on average:
  few rows are long enough to have a whole token of 0.02 %.
- Only tokens with a positive covariance are penalised: the others do not lower the entropy.

Randomness is a function of the seed of the optimizer step and the row's id.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rllm_core.contracts.loss import LossInput
from rllm_core.seeding import derive_seed
from rllm_core.updates.losses import clipped_surrogate, importance_ratio, log_ratio, summable, surrogate_clipped
from rllm_estimators.loss_rows import Rows
from rllm_estimators.options import ClipCovParams, KlCovParams


def kl_cov(inputs: LossInput, params: KlCovParams) -> Tensor:
    """-A rho, plus ppo_kl_coef |log rho| on the share `kl_cov_ratio` of each row's tokens with the highest covariance.

    arXiv:2505.22617, chosen per row: see the module.
    """
    rows = Rows.from_row_ids(inputs.row_ids)
    covariance = _covariance(inputs, rows)
    how_many, _ = _draw(inputs, rows, params.kl_cov_ratio)
    chosen = rows.best(covariance, how_many) & (covariance > 0)
    penalty = params.ppo_kl_coef * log_ratio(inputs.logprobs, inputs.old_logprobs).abs()
    return -inputs.advantages * importance_ratio(inputs) + penalty.masked_fill(~chosen, 0.0)


def clip_cov(inputs: LossInput, params: ClipCovParams) -> Tensor:
    """PPO's clipped surrogate, and 0 on a random share `clip_cov_ratio` of each row's tokens.

    Drawn from those with clip_cov_lb < covariance < clip_cov_ub that are not clipped anyway. arXiv:2505.22617, chosen
    per row: see the module.
    """
    ratio = importance_ratio(inputs)
    losses = clipped_surrogate(ratio, inputs.advantages, *params.eps_low_high)
    return losses.masked_fill(_find_cut_tokens(inputs, ratio, params), 0)


def clip_cov_clipped(inputs: LossInput, params: ClipCovParams) -> Tensor:
    """(n_sampled,) bool, tokens that `clip_cov` clips as PPO does, or cuts."""
    ratio = importance_ratio(inputs)
    return surrogate_clipped(ratio, inputs.advantages, *params.eps_low_high) | _find_cut_tokens(inputs, ratio, params)


def _find_cut_tokens(inputs: LossInput, ratio: Tensor, params: ClipCovParams) -> Tensor:
    rows = Rows.from_row_ids(inputs.row_ids)
    covariance = _covariance(inputs, rows)
    low, high = params.eps_low_high
    followed = torch.where(inputs.advantages > 0, ratio <= 1 + high, ratio >= 1 - low)
    candidates = (covariance > params.clip_cov_lb) & (covariance < params.clip_cov_ub) & followed
    how_many, scores = _draw(inputs, rows, params.clip_cov_ratio)
    return rows.best(scores.masked_fill(~candidates, -1), how_many) & candidates


def _covariance(inputs: LossInput, rows: Rows) -> Tensor:
    # Finite, as the mean of a row with -inf leaves no number to order tokens by.
    logprobs = summable(inputs.logprobs.detach())
    return inputs.advantages * (logprobs - rows.mean(logprobs))


def _draw(inputs: LossInput, rows: Rows, share: float) -> tuple[Tensor, Tensor]:
    """(n_row,) how many tokens of each row to choose, and (n_sampled,) random numbers in [0, 1).

    Drawn on the CPU row by row, so that every device and every cut into micro-batches gives the same.
    """
    generator = torch.Generator()
    how_many: list[int] = []
    scores: list[Tensor] = [torch.zeros(0)]
    for row, length in zip(rows.ids.tolist(), rows.lengths.tolist(), strict=True):
        generator.manual_seed(derive_seed(inputs.seed, "covariance", row))
        up, *_ = torch.rand(1, generator=generator, dtype=torch.float64).tolist()
        how_many.append(int(share * length + up))
        scores.append(torch.rand(length, generator=generator))
    device = inputs.logprobs.device
    return torch.tensor(how_many, dtype=torch.int64, device=device), torch.cat(scores).to(device)
