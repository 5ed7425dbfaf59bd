"""The rollout correction of an update: how it weighs each token, computed from the recorded log-probs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NONE = "the run has no rollout correction"
LEAST, MOST = -1e9, 1e5
"""What infinite log-ratios count as in a sum; impossible for the trainer outweighs impossible for the sampler."""


def rollout_weights(
    old: NDArray[np.float64], sampled: NDArray[np.float64], starts: Sequence[int], correction: Mapping[str, Any]
) -> NDArray[np.float64]:
    """min(exp(old - sampled), cap) of each token, or of the product over its segment; 0: masked.

    Args:
        old: (n,) old log-probs in nats, NaN where a token is not trained on.
        sampled: (n,) as the sampler reported them.
        starts: of the segments, in order: a row of the batch each.
        correction: ``mode``, ``cap``, ``floor`` and ``beyond_cap``, as in `RolloutCorrection`.

    Returns:
        (n,) in [0, cap]; NaN where a log-prob is not known.
    """
    with np.errstate(all="ignore"):
        log_ratios = np.where(np.isneginf(old) & np.isneginf(sampled), 0.0, old - sampled)
        if correction["mode"] == "sequence":
            log_ratios = _sums(np.clip(log_ratios, LEAST, MOST), starts)
        ratios = np.exp(log_ratios)
    beyond = correction["cap"] if correction["beyond_cap"] == "truncate" else 0.0
    weights = np.where(ratios > correction["cap"], beyond, ratios)
    return np.where(ratios < correction["floor"], 0.0, weights)


def told(correction: Mapping[str, Any]) -> str:
    """The correction in words."""
    beyond = "masked beyond it" if correction["beyond_cap"] == "mask" else "at most that"
    floor = f", masked below {correction['floor']:.4g}" if correction["floor"] else ""
    return f"rollout correction by {correction['mode']}, cap {correction['cap']:.4g}, {beyond}{floor}"


def _sums(values: NDArray[np.float64], starts: Sequence[int]) -> NDArray[np.float64]:
    """(n,) the sum of what is known of each segment; NaN stays NaN."""
    found = np.full(len(values), np.nan)
    for start, end in zip(starts, [*starts[1:], len(values)], strict=True):
        known = ~np.isnan(values[start:end])
        found[start:end][known] = values[start:end][known].sum()
    return found
