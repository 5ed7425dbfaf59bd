"""Account: everything that is known of one trajectory in one step, down to its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllm_record.steps import RecordedOutcome, RecordError, StepFiles
from rllm_view.reading.columns import NOT_BY_BACKEND, NOT_BY_RECORD, Column, columns_of
from rllm_view.reading.rollout import Rollout, read_attempt
from rllm_view.reading.run import Run
from rllm_view.reading.traces import read_trace


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A member of the group."""

    trajectory: str
    played_step: int
    reward: float | None
    solved: bool | None


@dataclass(frozen=True, kw_only=True)
class Decided:
    """Outcome of the trajectory in the step."""

    step: int
    fate: str
    rule: str
    numbers: Mapping[str, float]
    group: str | None
    estimator: str | None
    baseline: float | None
    advantage: float | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Account:
    """A trajectory in a step."""

    attempt: Rollout
    decided: Decided
    group: Sequence[Peer]
    """Members of its group, itself included, in the order of their uids; empty where it has none."""
    columns: Sequence[Column]
    texts: Sequence[str] | None
    """(n,) values of its tokens. None if they are not recorded."""
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
    fate = _fate_of(run, files, step, uid)
    attempt = read_attempt(run.record, fate.played_step, uid)
    trace = read_trace(run.record, step, attempt) if attempt.ids is not None else None
    objective = None if trace is None else _objective(files, step)
    return Account(
        attempt=attempt,
        decided=Decided(
            step=step,
            fate=fate.outcome.outcome,
            rule=fate.outcome.rule,
            numbers=fate.outcome.numbers,
            group=fate.outcome.group,
            estimator=getattr(fate, "estimator", None),
            baseline=getattr(fate, "baseline", None),
            advantage=getattr(fate, "advantage", None),
        ),
        group=_group(run, fate),
        columns=columns_of(attempt, trace, _why_no_trace(attempt, fate.outcome.outcome), objective),
        texts=None if attempt.ids is None else run.vocabulary.texts(attempt.ids.tolist()),
        objective=objective,
    )


def _fate_of(run: Run, files: StepFiles, step: int, uid: str) -> RecordedOutcome:
    found = next((each for each in files.outcomes(step) if each.outcome.trajectory == uid), None)
    if found is None:
        raise RecordError(
            "unknown-trajectory",
            f"Trajectory {uid!r} has no recorded outcome in step {step}.",
            "Run `rllm view` to see the trajectories of each step.",
        )
    return found


def _group(run: Run, fate: RecordedOutcome) -> list[Peer]:
    if fate.outcome.group is None:
        return []
    uids = sorted({fate.outcome.trajectory, *fate.outcome.peers})
    query = """
    SELECT trajectory, played_step, reward_given AS reward, is_correct AS solved FROM played
    WHERE list_contains(?, trajectory) ORDER BY played_step, round, natural_key(trajectory)
    """
    return [Peer(**row) for row in run.index.rows(query, [uids])]


def _why_no_trace(attempt: Rollout, fate: str) -> str:
    if attempt.ids is None:
        return NOT_BY_RECORD
    return NOT_BY_BACKEND if fate == "trained" else f"not trained on in this step: {fate}"


def _objective(files: StepFiles, step: int) -> Mapping[str, Any] | None:
    try:
        found: Mapping[str, Any] = files.objective(step)
    except (RecordError, AttributeError, KeyError):
        return None
    return found
