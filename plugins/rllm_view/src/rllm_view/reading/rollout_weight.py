"""The rollout correction of an update: each token's weight, computed from the recorded log-probs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_backend_kit.rejection import rejected

RULES = (
    "none", "token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3", "seq_mean_k1", "seq_mean_k2",
    "seq_mean_k3", "seq_max_k2", "seq_max_k3", "veto", "kpop", "opsm", "m2po",
)  # fmt: skip
"""Names of the rules that reject tokens, at the positions that a column contains."""
NONE = "the run has no rollout correction"
LEAST, MOST = -1e9, 1e5
"""Values of infinite log-ratios in a sum. -inf (impossible for the trainer) wins over inf (for the sampler)."""


def rollout_weights(
    old: NDArray[np.float64], sampled: NDArray[np.float64], starts: Sequence[int], correction: Mapping[str, Any]
) -> NDArray[np.float64]:
    """min(exp(old - sampled), cap) / mean of each token, or of the product over its segment; 0: masked.

    Args:
        old: (n,) old log-probs in nats, NaN where a token is not trained on.
        sampled: (n,) as the sampler reported them.
        starts: of the segments, in order: a row of the batch each.
        correction: ``mode``, ``cap``, ``floor``, ``beyond_cap`` and ``mean_weight``, as in `RolloutCorrection`.

    Returns:
        (n,) in [0, cap / mean]; NaN where a log-prob is not known.
    """
    if correction["mode"] is None:
        return np.where(np.isnan(old - sampled), np.nan, 1.0)
    with np.errstate(all="ignore"):
        log_ratios = np.where(np.isneginf(old) & np.isneginf(sampled), 0.0, old - sampled)
        if correction["mode"] == "sequence":
            log_ratios = _sums(np.clip(log_ratios, LEAST, MOST), starts)
        ratios = np.exp(log_ratios)
    beyond = correction["cap"] if correction["beyond_cap"] == "truncate" else 0.0
    weights = np.where(ratios > correction["cap"], beyond, ratios)
    return np.where(ratios < correction["floor"], 0.0, weights) / (correction.get("mean_weight") or 1.0)


def rejecting_rules(
    old: NDArray[np.float64],
    sampled: NDArray[np.float64],
    advantages: NDArray[np.float64],
    starts: Sequence[int],
    correction: Mapping[str, Any],
) -> NDArray[np.float64]:
    """Find the first rule of the correction that rejects each token.

    Args:
        old: see `rollout_weights`.
        sampled: see `rollout_weights`.
        advantages: (n,) of the tokens.
        starts: see `rollout_weights`.
        correction: `reject` has the thresholds by rule.

    Returns:
        (n,) positions in `RULES`; 0: no rule rejects it, NaN: a log-prob is not known.
    """
    with np.errstate(invalid="ignore"):
        known = ~np.isnan(old - sampled) | (np.isneginf(old) & np.isneginf(sampled))
    found = np.where(known, 0.0, np.nan)
    lengths = np.array([int(known[start:end].sum()) for start, end in pairwise([*starts, len(old)])], np.int64)
    rules = correction.get("reject") or {}
    masks = rejected(old[known], sampled[known], advantages[known], lengths[lengths > 0], rules)
    for name in reversed(masks):
        found[np.flatnonzero(known)[masks[name]]] = RULES.index(name)
    return found


def told(correction: Mapping[str, Any]) -> str:
    """The correction in words."""
    reject = correction.get("reject") or {}
    rules = [f"rejects by {name} {_written(name, bounds)}" for name, bounds in reject.items()]
    if correction["mode"] is None:
        return f"rollout correction {', '.join(rules)}"
    beyond = "masked beyond it" if correction["beyond_cap"] == "mask" else "at most that"
    floor = [f"masked below {correction['floor']:.4g}"] if correction["floor"] else []
    mean = correction.get("mean_weight", 1.0)
    divided = [] if mean in (None, 1.0) else [f"divided by the batch's mean {mean:.4g}"]
    weighted = f"rollout correction by {correction['mode']}, cap {correction['cap']:.4g}"
    return ", ".join([weighted, beyond, *floor, *divided, *rules])


def _written(name: str, bounds: float | Sequence[float]) -> str:
    numbers = [bounds] if isinstance(bounds, float | int) else bounds
    return (", cutoff " if name == "m2po" else " to ").join(f"{bound:.4g}" for bound in numbers)


def _sums(values: NDArray[np.float64], starts: Sequence[int]) -> NDArray[np.float64]:
    """(n,) the sum of what is known of each segment; NaN stays NaN."""
    found = np.full(len(values), np.nan)
    for start, end in zip(starts, [*starts[1:], len(values)], strict=True):
        known = ~np.isnan(values[start:end])
        found[start:end][known] = values[start:end][known].sum()
    return found
