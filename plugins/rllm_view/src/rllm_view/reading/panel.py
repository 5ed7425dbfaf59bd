"""The twelve facts that explain a token's gradient, from turn to parts of the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rllm_view.reading.account import Account
from rllm_view.reading.columns import NOT_BY_BACKEND, NOT_BY_RECORD
from rllm_view.reading.rollout_weight import told


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One of the twelve."""

    title: str
    text: str | None
    """Value for the whole trajectory. None if `columns` or the turn contain the value."""
    columns: tuple[str, ...] = ()
    """Ids of the columns that contain the value of each token."""


def facts_of(account: Account) -> list[Fact]:
    """The twelve, in the order in which a gradient comes about."""
    return [
        Fact(title="Turn", text=None),
        Fact(title="Reward", text=_reward(account)),
        Fact(title="Group", text=_group(account)),
        Fact(title="Estimator", text=_estimator(account)),
        Fact(title="Advantage", text=_advantage(account), columns=("advantage",)),
        Fact(title="Filter", text=_filter(account)),
        Fact(title="Weight version", text=None),
        Fact(title="Minibatch", text=None, columns=("optimizer_step",)),
        Fact(
            title="Log-probs", text=None, columns=("rollout_logprob", "old_logprob", "ref_logprob", "logprob", "ratio")
        ),
        Fact(title="Loss", text=_loss(account), columns=("clipped", "rollout_weight", "rejected_by", "weight", "loss")),
        Fact(title="Entropy", text=_entropy(account), columns=("entropy", "entropy_part")),
        Fact(
            title="Gradient",
            text=None,
            columns=("policy_part", "kl_part", "grad_norm", "clip_factor", "push", "learning_rate"),
        ),
    ]


def number(value: float | None) -> str:
    """To four significant digits; ``-`` for what is not known."""
    # -0.0 + 0.0 is 0.0: no figure is -0.
    return "-" if value is None else f"{value + 0.0:.4g}"


def _reward(account: Account) -> str:
    attempt = account.attempt
    if attempt.reward_given is None:
        given = "none given"
    elif attempt.reward_used is None:
        given = f"{number(attempt.reward_given)}; no estimator used it"
    elif attempt.reward_used == attempt.reward_given:
        given = number(attempt.reward_given)
    else:
        given = f"given {number(attempt.reward_given)}, used {number(attempt.reward_used)}"
    parts = ", ".join(f"{name} {number(value)}" for name, value in attempt.components.items())
    return f"{given} ({parts})" if parts else given


def _group(account: Account) -> str:
    if account.decided.group is None:
        return "none: it left the step before there were groups"
    rewards = [each.reward for each in account.group if each.reward is not None]
    solved = sum(bool(each.solved) for each in account.group)
    if not rewards:
        return f"{account.decided.group}: {len(account.group)} trajectories"
    return (
        f"{account.decided.group}: {len(account.group)} trajectories, {solved} solved, rewards "
        f"{number(min(rewards))} to {number(max(rewards))}, mean {number(float(np.mean(rewards)))}"
    )


def _estimator(account: Account) -> str:
    decided = account.decided
    if decided.estimator is None:
        return "none: not trained on" if decided.fate != "trained" else "not recorded"
    baseline = "baseline not told by it" if decided.baseline is None else f"baseline {number(decided.baseline)}"
    return f"{decided.estimator}, {baseline}"


def _advantage(account: Account) -> str | None:
    value = account.decided.advantage
    return None if value is None else f"{number(value)} for each of its tokens"


def _filter(account: Account) -> str:
    decided = account.decided
    if decided.fate == "trained":
        return f"trained in step {decided.step}; no filter held it"
    numbers = ", ".join(f"{name} {number(value)}" for name, value in decided.numbers.items())
    return f"{decided.fate} in step {decided.step} by {decided.rule or 'no rule'}" + (
        f" ({numbers})" if numbers else ""
    )


def _loss(account: Account) -> str:
    if account.objective is None:
        return "none: not trained on" if account.decided.fate != "trained" else _unknown(account)
    losses: dict[str, Any] = account.objective.get("losses", {})
    chosen: dict[str, Any] = losses.get(account.attempt.name) or next(iter(losses.values()), {})
    parts = [chosen.get("name", "not recorded"), account.objective.get("aggregation", "aggregation not recorded")]
    correction = account.objective.get("rollout_correction")
    return ", ".join(parts if correction is None else [*parts, told(correction)])


def _entropy(account: Account) -> str | None:
    if account.objective is None:
        return None
    return f"bonus {number(account.objective.get('entropy_coeff'))}"


def _unknown(account: Account) -> str:
    return NOT_BY_RECORD if account.attempt.ids is None else NOT_BY_BACKEND


def turn_of(account: Account, position: int) -> int | None:
    """Number of the turn that a token is in, from 0; None: it is in none."""
    ends: Sequence[int] = [turn.end for turn in account.attempt.turns]
    return next((index for index, end in enumerate(ends) if position < end), None)
