"""Losses of preferences, with their derivatives by the log-probs of whole completions.

All tokens of a completion have the same derivative. So a loss of a pair needs no rows in one micro-batch: the
derivative becomes the advantage of each token, and the loss `reinforce` has the same gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rllm.builtin.preferences.options import PreferParams

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PreferenceLoss:
    """Losses whose mean is minimized, and its derivatives."""

    losses: Numbers
    """One loss for each pair, or for each completion."""
    slopes: Numbers
    """Derivative of the mean of `losses` by the log-prob of each completion. Shaped as the log-ratios."""


def dpo(log_ratios: Numbers, beta: float) -> PreferenceLoss:
    """Return -log sigmoid(beta (chosen - rejected)). Rafailov et al. 2023, arXiv:2305.18290.

    Args:
        log_ratios: (n_pair, 2) log p - log p(reference) of the chosen and of the rejected completion.
        beta: see `PreferParams`.
    """
    logits = beta * (log_ratios[:, 0] - log_ratios[:, 1])
    return PreferenceLoss(np.logaddexp(0, -logits), _of_both(-beta * _sigmoid(-logits) / len(logits)))


def ipo(log_ratios: Numbers, lengths: Numbers, beta: float) -> PreferenceLoss:
    """Return (chosen - rejected - 1 / (2 beta))² of means over tokens. Azar et al. 2023, arXiv:2310.12036.

    The paper has sums over tokens. TRL confirmed the means with the paper's authors.

    Args:
        log_ratios: see `dpo`.
        lengths: (n_pair, 2) number of tokens.
        beta: see `PreferParams`. The paper calls it tau.
    """
    means = log_ratios / lengths
    distances = means[:, 0] - means[:, 1] - 1 / (2 * beta)
    return PreferenceLoss(distances**2, _of_both(2 * distances / len(distances)) / lengths)


def kto(log_ratios: Numbers, good: NDArray[np.bool_], divergence: float, params: PreferParams) -> PreferenceLoss:
    """Return 1 - sigmoid(±beta (log-ratio - divergence)), + for good completions.

    Ethayarajh et al. 2024, arXiv:2402.01306.

    Args:
        log_ratios: (n,) as in `dpo`.
        good: (n,) True for good completions.
        divergence: estimate of the KL divergence from the reference model, at least 0. It is a constant.
        params: beta and the weights.
    """
    signs = np.where(good, 1.0, -1.0)
    weights = np.where(good, params.desirable_weight, params.undesirable_weight)
    values = _sigmoid(signs * params.beta * (log_ratios - divergence))
    slopes = -weights * signs * params.beta * values * (1 - values) / len(values)
    return PreferenceLoss(weights * (1 - values), slopes)


def _of_both(slopes: Numbers) -> Numbers:
    """Return (n, 2) slopes of a loss that only depends on the difference of two values."""
    return np.stack((slopes, -slopes), axis=1)


def _sigmoid(values: Numbers) -> Numbers:
    return np.exp(-np.logaddexp(0, -values))
