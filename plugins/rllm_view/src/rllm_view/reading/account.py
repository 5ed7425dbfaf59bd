"""Account: all recorded data of one trajectory in one step, and the twelve facts that explain a token's gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rllm_record.steps import RecordedOutcome, RecordError, StepFiles
from rllm_view.reading.columns import NOT_BY_BACKEND, NOT_BY_RECORD, Column, columns_of, describe_correction
from rllm_view.reading.rollout import Rollout, read_rollout, read_trace
from rllm_view.reading.run import Run


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A member of the group."""

    trajectory: str
    rollout_step: int
    reward: float | None
    solved: bool | None


@dataclass(frozen=True, kw_only=True)
class TrajectoryOutcome:
    """Outcome of the trajectory in the step."""

    step: int
    outcome: str
    rule: str
    numbers: Mapping[str, float]
    group: str | None
    estimator: str | None
    baseline: float | None
    advantage: float | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Account:
    """A trajectory in a step."""

    rollout: Rollout
    decided: TrajectoryOutcome
    group: Sequence[Peer]
    """Members of its group, itself included, in the order of their uids. Empty if it has no group."""
    columns: Sequence[Column]
    texts: Sequence[str] | None
    """(n,) text of its tokens. None if they are not recorded."""
    objective: Mapping[str, Any] | None
    """Parts of the update's loss. None if they are not recorded."""


def account_of(run: Run, step: int, uid: str) -> Account:
    """Return the account of a trajectory.

    Args:
        run: a run with a refreshed index.
        step: the step of the outcome. A trajectory can have outcomes in several steps.
        uid: the trajectory's uid.

    Raises:
        RecordError: the trajectory is not recorded in this step, or a file cannot be read.
    """
    run.require_step(step)
    files = StepFiles(run.record)
    recorded = _outcome_of(run, files, step, uid)
    rollout = read_rollout(run.record, recorded.rollout_step, uid)
    trace = read_trace(run.record, step, rollout) if rollout.ids is not None else None
    objective = None if trace is None else _objective(files, step)
    return Account(
        rollout=rollout,
        decided=TrajectoryOutcome(
            step=step,
            outcome=recorded.outcome.outcome,
            rule=recorded.outcome.rule,
            numbers=recorded.outcome.numbers,
            group=recorded.outcome.group,
            estimator=recorded.estimator,
            baseline=recorded.baseline,
            advantage=recorded.advantage,
        ),
        group=_peers(run, recorded),
        columns=columns_of(rollout, trace, _why_no_trace(rollout, recorded.outcome.outcome), objective),
        texts=None if rollout.ids is None else run.vocabulary.texts(rollout.ids.tolist()),
        objective=objective,
    )


def _outcome_of(run: Run, files: StepFiles, step: int, uid: str) -> RecordedOutcome:
    found = next((each for each in files.outcomes(step) if each.outcome.trajectory == uid), None)
    if found is None:
        raise RecordError(
            "unknown-trajectory",
            f"Trajectory {uid!r} has no recorded outcome in step {step}.",
            "Run `rllm view` to see the trajectories of each step.",
        )
    return found


def _peers(run: Run, recorded: RecordedOutcome) -> list[Peer]:
    if recorded.outcome.group is None:
        return []
    uids = sorted({recorded.outcome.trajectory, *recorded.outcome.peers})
    query = """
    SELECT trajectory, rollout_step, reward_given AS reward, is_correct AS solved FROM trajectories
    WHERE list_contains(?, trajectory) ORDER BY rollout_step, batch, natural_key(trajectory)
    """
    return [Peer(**row) for row in run.index.rows(query, [uids])]


def _why_no_trace(rollout: Rollout, outcome: str) -> str:
    if rollout.ids is None:
        return NOT_BY_RECORD
    return NOT_BY_BACKEND if outcome == "trained" else f"not trained on in this step: {outcome}"


def _objective(files: StepFiles, step: int) -> Mapping[str, Any] | None:
    try:
        found: Mapping[str, Any] = files.objective(step)
    except (RecordError, AttributeError, KeyError):
        return None
    return found


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One of the twelve facts."""

    title: str
    text: str | None
    """Value for the whole trajectory. None if `columns` or the turn contain the value."""
    columns: tuple[str, ...] = ()
    """Ids of the columns that contain the value of each token."""


def facts_of(account: Account) -> list[Fact]:
    """Return the twelve facts, in the order in which a gradient is computed."""
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
    """Return a number with four significant digits, or ``-`` if it is not available."""
    # -0.0 + 0.0 is 0.0: no value is -0.
    return "-" if value is None else f"{value + 0.0:.4g}"


def _reward(account: Account) -> str:
    rollout = account.rollout
    if rollout.reward_given is None:
        given = "none given"
    elif rollout.reward_used is None:
        given = f"{number(rollout.reward_given)}; no estimator used it"
    elif rollout.reward_used == rollout.reward_given:
        given = number(rollout.reward_given)
    else:
        given = f"given {number(rollout.reward_given)}, used {number(rollout.reward_used)}"
    parts = ", ".join(f"{name} {number(value)}" for name, value in rollout.components.items())
    return f"{given} ({parts})" if parts else given


def _group(account: Account) -> str:
    if account.decided.group is None:
        return "none: it was removed before the groups were built"
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
        return "none: not trained on" if decided.outcome != "trained" else "not recorded"
    baseline = "baseline not reported" if decided.baseline is None else f"baseline {number(decided.baseline)}"
    return f"{decided.estimator}, {baseline}"


def _advantage(account: Account) -> str | None:
    value = account.decided.advantage
    return None if value is None else f"{number(value)} for each of its tokens"


def _filter(account: Account) -> str:
    decided = account.decided
    if decided.outcome == "trained":
        return f"trained in step {decided.step}; no filter removed it"
    numbers = ", ".join(f"{name} {number(value)}" for name, value in decided.numbers.items())
    return f"{decided.outcome} in step {decided.step} by {decided.rule or 'no rule'}" + (
        f" ({numbers})" if numbers else ""
    )


def _loss(account: Account) -> str:
    if account.objective is None:
        return "none: not trained on" if account.decided.outcome != "trained" else _unknown(account)
    losses: dict[str, Any] = account.objective.get("losses", {})
    chosen: dict[str, Any] = losses.get(account.rollout.name) or next(iter(losses.values()), {})
    parts = [chosen.get("name", "not recorded"), account.objective.get("aggregation", "aggregation not recorded")]
    correction = account.objective.get("rollout_correction")
    return ", ".join(parts if correction is None else [*parts, describe_correction(correction)])


def _entropy(account: Account) -> str | None:
    if account.objective is None:
        return None
    return f"bonus {number(account.objective.get('entropy_coeff'))}"


def _unknown(account: Account) -> str:
    return NOT_BY_RECORD if account.rollout.ids is None else NOT_BY_BACKEND


def turn_of(account: Account, position: int) -> int | None:
    """Return the number of the token's turn, from 0. None if the token is in no turn."""
    ends: Sequence[int] = [turn.end for turn in account.rollout.turns]
    return next((index for index, end in enumerate(ends) if position < end), None)
