"""Columns: every metric of each token of a trajectory, with its unit, or the reason why it is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_backend_kit.rejection import find_rejected_tokens
from rllm_view.reading.rollout import EpochTrace, Rollout, Trace

RULES = (
    "none", "token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3", "seq_mean_k1", "seq_mean_k2",
    "seq_mean_k3", "seq_max_k2", "seq_max_k3", "veto", "kpop", "opsm", "m2po",
)  # fmt: skip
"""Names of the rules that reject tokens, at the positions that a column contains."""
NONE = "the run has no rollout correction"
LEAST, MOST = -1e9, 1e5
"""Values of infinite log-ratios in a sum. -inf (impossible for the trainer) outweighs inf (for the sampler)."""


def rollout_weights(
    old: NDArray[np.float64], sampled: NDArray[np.float64], starts: Sequence[int], correction: Mapping[str, Any]
) -> NDArray[np.float64]:
    """Return min(exp(old - sampled), cap) / mean of each token, or of the product over its segment. 0: masked.

    Args:
        old: (n,) old log-probs in nats, NaN where a token is not trained on.
        sampled: (n,) log-probs from the sampler.
        starts: start of each segment, in order. A segment is a row of the batch.
        correction: ``mode``, ``cap``, ``floor``, ``beyond_cap`` and ``mean_weight``, as in `RolloutCorrection`.

    Returns:
        (n,) in [0, cap / mean]. NaN if a log-prob is not available.
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
        (n,) positions in `RULES`. 0: no rule rejects the token. NaN: a log-prob is not available.
    """
    with np.errstate(invalid="ignore"):
        known = ~np.isnan(old - sampled) | (np.isneginf(old) & np.isneginf(sampled))
    found = np.where(known, 0.0, np.nan)
    lengths = np.array([int(known[start:end].sum()) for start, end in pairwise([*starts, len(old)])], np.int64)
    rules = correction.get("reject") or {}
    masks = find_rejected_tokens(old[known], sampled[known], advantages[known], lengths[lengths > 0], rules)
    for name in reversed(masks):
        found[np.flatnonzero(known)[masks[name]]] = RULES.index(name)
    return found


def describe_correction(correction: Mapping[str, Any]) -> str:
    """Return a description of the correction."""
    reject = correction.get("reject") or {}
    rules = [f"rejects by {name} {_format_bounds(name, bounds)}" for name, bounds in reject.items()]
    if correction["mode"] is None:
        return f"rollout correction {', '.join(rules)}"
    beyond = "masked above it" if correction["beyond_cap"] == "mask" else "at most that"
    floor = [f"masked below {correction['floor']:.4g}"] if correction["floor"] else []
    mean = correction.get("mean_weight", 1.0)
    divided = [] if mean in (None, 1.0) else [f"divided by the batch's mean {mean:.4g}"]
    weighted = f"rollout correction by {correction['mode']}, cap {correction['cap']:.4g}"
    return ", ".join([weighted, beyond, *floor, *divided, *rules])


def _format_bounds(name: str, bounds: float | Sequence[float]) -> str:
    numbers = [bounds] if isinstance(bounds, float | int) else bounds
    return (", cutoff " if name == "m2po" else " to ").join(f"{bound:.4g}" for bound in numbers)


def _sums(values: NDArray[np.float64], starts: Sequence[int]) -> NDArray[np.float64]:
    """Return (n,) the sum of the available values of each segment. NaN stays NaN."""
    found = np.full(len(values), np.nan)
    for start, end in zip(starts, [*starts[1:], len(values)], strict=True):
        known = ~np.isnan(values[start:end])
        found[start:end][known] = values[start:end][known].sum()
    return found


NOT_BY_BACKEND = "not recorded by this backend"
NOT_BY_RECORD = "not recorded; a run with rllm.record=tokens records it"
NOT_TRAINED = "not trained on"
NOT_CLIPPING = "the loss does not clip, or does not report clipped tokens"
NO_OBJECTIVE = "not recorded: the parts of the loss"


@dataclass(frozen=True, kw_only=True, eq=False)
class Column:
    """One value per token."""

    id: str
    """Unique together with `epoch`."""
    title: str
    unit: str
    epoch: int | None
    """Pass over the batch, from 0. None: the values are the same in all epochs."""
    values: NDArray[np.float64] | None
    """(n,) values. NaN if the value of a token is not available."""
    missing: str
    """The reason why `values` is None or contains NaN."""
    words: Mapping[str, str]
    """Meaning of some numbers, by their printed form."""


TITLES = {
    "rollout_logprob": ("log-prob when sampled", "nats"),
    "advantage": ("advantage", ""),
    "old_logprob": ("old log-prob", "nats"),
    "ref_logprob": ("log-prob of the reference model", "nats"),
    "logprob": ("log-prob in the update", "nats"),
    "ratio": ("ratio to the old policy", ""),
    "entropy": ("entropy", "nats"),
    "rollout_weight": ("rollout correction weight", ""),
    "rejected_by": ("rejected by the rule", ""),
    "weight": ("weight in the loss", ""),
    "policy_part": ("∂ policy loss / ∂ log-prob", ""),
    "kl_part": ("∂ KL term / ∂ log-prob", ""),
    "entropy_part": ("∂ entropy bonus / ∂ entropy", ""),
    "optimizer_step": ("optimizer step within the training step", ""),
    "loss": ("loss of the optimizer step", ""),
    "grad_norm": ("gradient norm of the optimizer step", ""),
    "clip_factor": ("gradient clipping multiplies by", ""),
    "learning_rate": ("learning rate", ""),
    "push": ("push: -clipping · (policy + KL part)", ""),
    "clipped": ("clipped by the loss", ""),
}
WORDS: Mapping[str, Mapping[str, str]] = {
    "clipped": {"0": "no", "1": "yes"},
    "rollout_weight": {"0": "0: masked by the rollout correction"},
    "rejected_by": {str(number): name for number, name in enumerate(RULES)},
}
OF_BATCH = ("rollout_logprob", "advantage", "old_logprob", "ref_logprob")
OF_EPOCH = (
    "optimizer_step", "logprob", "ratio", "clipped", "entropy", "weight", "policy_part", "kl_part", "entropy_part",
    "clip_factor", "push", "loss", "grad_norm", "learning_rate",
)  # fmt: skip


def columns_of(rollout: Rollout, trace: Trace | None, reason: str, objective: Mapping[str, Any] | None) -> list[Column]:
    """Return all columns of a trajectory.

    Args:
        rollout: the trajectory.
        trace: trace of the update. None if it is not available.
        reason: the reason why the trace is not available.
        objective: parts of the loss of the update. None: not recorded.
    """
    sampled = None if rollout.logprobs is None else _sampled_logprobs(rollout)
    known = dict.fromkeys(OF_BATCH) if trace is None else dict(trace.batch)
    found = [
        _column("rollout_logprob", None, sampled, NOT_BY_RECORD if rollout.logprobs is None else "not sampled"),
        *(_column(name, None, known[name], _batch_missing_reason(name, trace, reason)) for name in OF_BATCH[1:]),
        *_correction(rollout, trace, reason, objective),
    ]
    for epoch in trace.epochs if trace is not None else ():
        values = _compute_derived_values(epoch, known.get("old_logprob"))
        found += [_column(name, epoch.epoch, values.get(name), _trace_missing_reason(name)) for name in OF_EPOCH]
    if trace is None or not trace.epochs:
        why = reason if trace is None else NOT_BY_BACKEND
        found += [_column(name, None, None, why) for name in OF_EPOCH]
    return found


def _column(name: str, epoch: int | None, values: NDArray[np.float64] | None, missing: str) -> Column:
    title, unit = TITLES[name]
    missing = NOT_TRAINED if values is not None and name != "rollout_logprob" else missing
    words = WORDS.get(name, {})
    return Column(id=name, title=title, unit=unit, epoch=epoch, values=values, missing=missing, words=words)


def _batch_missing_reason(name: str, trace: Trace | None, reason: str) -> str:
    if trace is None:
        return reason
    return "the run has no reference model, or did not use it" if name == "ref_logprob" else NOT_BY_BACKEND


def _trace_missing_reason(name: str) -> str:
    return NOT_CLIPPING if name == "clipped" else NOT_BY_BACKEND


def _correction(
    rollout: Rollout, trace: Trace | None, reason: str, objective: Mapping[str, Any] | None
) -> list[Column]:
    """Return the columns of the rollout correction."""
    missing, weights, rules = NOT_TRAINED, None, None
    correction = None if objective is None else objective.get("rollout_correction")
    batch = {} if trace is None else trace.batch
    old, sampled, advantages = (batch.get(name) for name in ("old_logprob", "rollout_logprob", "advantage"))
    if trace is None:
        missing = reason
    elif objective is None or "rollout_correction" not in objective:
        missing = NO_OBJECTIVE
    elif correction is None:
        missing = NONE
    elif old is None or sampled is None or advantages is None:
        missing = NOT_BY_BACKEND
    else:
        starts = sorted({turn.segment_start for turn in rollout.turns})
        rules = rejecting_rules(old, sampled, advantages, starts, correction)
        weights = np.where(rules > 0, 0.0, rollout_weights(old, sampled, starts, correction))
    return [_column("rollout_weight", None, weights, missing), _column("rejected_by", None, rules, missing)]


def _sampled_logprobs(rollout: Rollout) -> NDArray[np.float64]:
    """Return the log-probs of sampled tokens. Prompts have log-prob 0 in the record, and NaN here."""
    assert rollout.logprobs is not None
    values = np.full(rollout.length, np.nan)
    for turn in rollout.turns:
        values[turn.response_start : turn.end] = rollout.logprobs[turn.response_start : turn.end]
    return values


def _compute_derived_values(
    epoch: EpochTrace, old: NDArray[np.float64] | None
) -> dict[str, NDArray[np.float64] | None]:
    values = dict(epoch.values)
    logprob, policy, kl = values["logprob"], values["policy_part"], values["kl_part"]
    clip_factor = values["clip_factor"]
    if logprob is not None and old is not None:
        with np.errstate(over="ignore"):
            values["ratio"] = np.exp(logprob - old)
    if policy is not None and clip_factor is not None:
        values["push"] = -clip_factor * (policy + (0.0 if kl is None else kl))
    return values


def value_at(column: Column, position: int) -> float | None:
    """Return the value of one token. None if it is not available."""
    if column.values is None or not 0 <= position < len(column.values) or np.isnan(column.values[position]):
        return None
    return float(column.values[position])


def strongest(columns: Sequence[Column], count: int) -> list[int]:
    """Return the positions of the tokens with the largest push in any epoch, largest first. Empty without a push."""
    pushes = [np.nan_to_num(np.abs(each.values)) for each in columns if each.id == "push" and each.values is not None]
    if not pushes:
        return []
    most = np.max(pushes, axis=0)
    order = np.argsort(-most, kind="stable")[:count]
    return [int(position) for position in order if most[position] > 0.0]
