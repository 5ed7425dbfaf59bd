"""Rules of ``rllm.algorithm.rollout_correction.reject``: which tokens are too far from the policy that sampled.

The rules need only numpy, so that `rllm why` can apply them to a record. With r = log(old / sampling probability) of a
token, bounded to -20 and 20, the estimates are k1 = -r, k2 = r² / 2 and k3 = exp(r) - 1 - r, as in verl.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Bounds = float | Sequence[float]
BOUND = 20.0
"""Log-ratios are bounded to this before they are exponentiated, as in verl."""
M2PO = "m2po"
"""Name of the rule whose cutoff depends on all tokens of a batch."""


def find_rejected_tokens(
    old: Values, sampled: Values, advantages: Values, lengths: NDArray[np.int64], rules: Mapping[str, Bounds]
) -> dict[str, NDArray[np.bool_]]:
    """Return (n,) True for each token that a rule rejects, by the rule's name.

    - `token_k1`, `token_k2`, `token_k3`: the token's estimate is out of bounds.
    - `seq_sum_*`, `seq_mean_*`, `seq_max_*`: the sum, mean or maximum over the row is. `seq_mean_k1` is the geometric
      mean of the row's ratios.
    - `veto`: the row has a token whose ratio is out of bounds (SkyRL: 1e-4 and 100).
    - `kpop`: KL(p, q) or KL(q, p) of "this token or another" is above the threshold (AReaL: 2).
    - `opsm`: the advantage is negative, and the row's mean of k1 is above the threshold (DeepSeek-V3.2, as in TRL).
    - `m2po`: r² is above the cutoff of `m2po_cutoff` (arXiv:2510.01161). Bounds are the threshold and the cutoff. With
      only a threshold, the given tokens are the whole batch.

    Bounds of a k1 rule and of `veto` are two ratios, sampling over old probability for k1. One number u means 1 / u and
    u. Other rules have one upper threshold.

    Args:
        old: (n,) log-probs under the trainer's weights at the start of the update.
        sampled: (n,) log-probs as the sampler reported them.
        advantages: (n,) of the tokens.
        lengths: (n_row,) number of tokens of each row, in order. No row is empty.
        rules: thresholds by the rule's name.
    """
    if not len(old):
        return {name: np.zeros(0, np.bool_) for name in rules}
    ratios = log_ratios(old, sampled)
    rows = _Rows(lengths)
    return {name: _apply_rule(name, bounds, ratios, old, sampled, advantages, rows) for name, bounds in rules.items()}


def log_ratios(old: Values, sampled: Values) -> Values:
    """Return r of each token, (n,) from -20 to 20. It is 0 if both log-probs are -inf."""
    with np.errstate(invalid="ignore", over="ignore"):
        raw = np.where(np.isneginf(old) & np.isneginf(sampled), 0.0, old - sampled)
    return raw.clip(-BOUND, BOUND)


def m2po_cutoff(squares: Values, threshold: float) -> float:
    """Return the largest r² to keep, so that the mean of all kept r² is below the threshold.

    The tokens with the largest r² are rejected first. Tokens with equal r² are kept or rejected together.

    Args:
        squares: (n,) r² of all tokens of a batch.
        threshold: upper bound of the mean, above 0.
    """
    values, counts = np.unique(squares, return_counts=True)
    fitting = np.cumsum(values * counts) < threshold * np.cumsum(counts)
    return float(values[fitting][-1]) if fitting.any() else 0.0


class _Rows:
    def __init__(self, lengths: NDArray[np.int64]) -> None:
        self._lengths = lengths
        self._starts = np.cumsum(lengths) - lengths

    def reduce(self, how: str, values: Values) -> Values:
        """(n,) the row's sum, mean or max for each of its tokens."""
        found = (np.maximum if how == "max" else np.add).reduceat(values, self._starts)
        return np.repeat(found / self._lengths if how == "mean" else found, self._lengths)


def _apply_rule(
    name: str, bounds: Bounds, ratios: Values, old: Values, sampled: Values, advantages: Values, rows: _Rows
) -> NDArray[np.bool_]:
    upper = bounds if isinstance(bounds, float | int) else math.inf
    if name == "veto":
        low, high = _logs(bounds)
        return np.asarray(rows.reduce("max", ((ratios < low) | (ratios > high)).astype(float)) > 0)
    if name == "kpop":
        p, q = np.exp(old), np.exp(sampled)
        return np.asarray(np.maximum(_binary_kl(p, q), _binary_kl(q, p)) > upper)
    if name == "opsm":
        return np.asarray((advantages < 0) & (rows.reduce("mean", -ratios) > upper))
    if name == M2PO:
        squares = ratios**2
        return squares > (m2po_cutoff(squares, bounds) if isinstance(bounds, float | int) else bounds[1])
    scope, _, estimate = name.rpartition("_")
    values = {"k1": -ratios, "k2": ratios**2 / 2, "k3": np.expm1(ratios) - ratios}[estimate]
    if scope != "token":
        values = rows.reduce(scope.removeprefix("seq_"), values)
    low, high = _logs(bounds) if estimate == "k1" else (-math.inf, upper)
    return np.asarray((values < low) | (values > high))


def _logs(bounds: Bounds) -> tuple[float, float]:
    low, high = (1 / bounds, bounds) if isinstance(bounds, float | int) else bounds
    return math.log(low), math.log(high)


def _binary_kl(p: Values, q: Values) -> Values:
    """KL between two distributions over "this token or another"."""
    p, q = (np.clip(each, 1e-12, 1 - 1e-12) for each in (p, q))
    divergence: Values = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    return divergence
