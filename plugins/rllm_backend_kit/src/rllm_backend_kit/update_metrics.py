"""Metrics of an update, collected from each micro-batch."""

from __future__ import annotations

import torch
from torch import Tensor

from rllm_backend_kit.loss import LossTerms, RowRoles, clipped_tokens
from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.loss import LossInput
from rllm_core.updates.losses import MAX_LOG_RATIO, log_ratio

SQUARED_RATIO = "squared ratio"
"""Name under which squares are collected. It is no metric."""


class Means:
    """The mean of everything added under a name."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, values: Tensor | float) -> None:
        """One number, or one for each token."""
        total, count = (float(values.sum()), values.numel()) if isinstance(values, Tensor) else (values, 1)
        self._sums[name] = self._sums.get(name, 0.0) + total
        self._counts[name] = self._counts.get(name, 0) + count

    def merge(self, other: Means) -> None:
        """Add everything that was added to `other`: in another micro-batch, or another process."""
        for name, total in other._sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + total
            self._counts[name] = self._counts.get(name, 0) + other._counts[name]

    def metrics(self) -> dict[str, float]:
        """Return the means by name, without the metrics that received no values."""
        found = {name: total / self._counts[name] for name, total in self._sums.items() if self._counts[name]}
        if (squared := found.pop(SQUARED_RATIO, None)) is not None:
            found["rollout_corr/chi2_token"] = squared - 1
            # The mean's square over the mean of squares: the effective share of tokens.
            found["rollout_corr/eff_sample_size"] = found["rollout_corr/ratio"] ** 2 / squared
        return found


@torch.no_grad()
def note_policy(means: Means, inputs: LossInput, terms: LossTerms, entropies: Tensor) -> None:
    """Note the sampled tokens of a micro-batch. Tokens that no policy sampled have no ratio (NaN old log-probs)."""
    known = ~inputs.old_logprobs.isnan()
    log_ratios = log_ratio(inputs.logprobs, inputs.old_logprobs)[known]
    # Backends without distributions estimate the entropy from the ratio.
    means.add("actor/entropy", entropies[~entropies.isnan()])
    means.add("actor/kl_old_new", log_ratios.exp() - 1 - log_ratios)
    means.add("actor/ratio_mean", log_ratios.exp())
    if terms.divergence is not None:
        means.add("actor/kl_ref", terms.divergence)
    if terms.weights is not None:
        means.add("actor/rollout_weight", terms.weights)
        means.add("actor/rollout_masked", (terms.weights == 0).float())
    if terms.above_cap is not None:
        means.add("rollout_corr/above_cap", terms.above_cap.float())
    for rule, tokens in terms.rejected.items():
        means.add(f"rollout_corr/rejected_{rule}", tokens.float())


@torch.no_grad()
def note_rollout(means: Means, inputs: LossInput) -> None:
    """Note how far the trainer is from the sampler, while their weights are the same."""
    assert inputs.sampling_logprobs is not None
    known = ~inputs.sampling_logprobs.isnan()
    difference = log_ratio(inputs.logprobs, inputs.sampling_logprobs)
    means.add("actor/rollout_logprob_difference", difference[known].abs())
    _note_off_policy(means, difference[known].double(), inputs.row_ids[known])


def _note_off_policy(means: Means, log_ratios: Tensor, row_ids: Tensor) -> None:
    """Note estimates of the distance to the sampler, by the names of verl's metrics.

    Args:
        means: receives them.
        log_ratios: (n,) log(trainer / sampler) of tokens that the sampler reported a log-prob of.
        row_ids: (n,) their rows.
    """
    log_ratios = log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    means.add("rollout_corr/kl", -log_ratios)
    means.add("rollout_corr/k3_kl", log_ratios.expm1() - log_ratios)
    means.add("rollout_corr/ratio", log_ratios.exp())
    means.add(SQUARED_RATIO, (2 * log_ratios).exp())
    if not len(log_ratios):
        return
    _, lengths = torch.unique_consecutive(row_ids, return_counts=True)
    sums = torch.segment_reduce(log_ratios, "sum", lengths=lengths)
    means.add("rollout_corr/ppl_ratio", (-sums / lengths).exp())
    means.add("rollout_corr/chi2_seq", (2 * sums.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)).exp() - 1)


@torch.no_grad()
def note_critic(means: Means, value_losses: Tensor, returns: Tensor) -> None:
    """Note the value losses of the tokens that have a target."""
    means.add("critic/value_loss", value_losses[~returns.isnan()])


def note_clipping(means: Means, rows: RowRoles, inputs: LossInput, plan: UpdatePlan) -> None:
    """Record the share of clipped tokens, for roles with a loss that clips. Raise the errors of `clipped_tokens`."""
    clipped = clipped_tokens(rows, inputs, plan)
    means.add("actor/clip_fraction", clipped[~clipped.isnan()])
