"""Trajectories by filters, over all steps of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from rllm_core.errors import ConfigError
from rllm_view.reading.index import StepIndex

Order = Literal[
    "step", "trajectory", "task", "outcome", "termination_reason", "solved", "reward", "advantage", "turns", "tokens"
]  # fmt: skip
_COLUMNS = {
    "step": "o.step",
    "trajectory": "o.trajectory_key",
    "task": "natural_key(t.task_id)",
    "outcome": "o.outcome",
    "termination_reason": "t.termination_reason",
    "solved": "t.is_correct",
    "reward": "t.reward_given",
    "advantage": "o.advantage",
    "turns": "t.turns",
    "tokens": "t.sampled_tokens",
}


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Conditions on trajectories, and their order. None: no condition."""

    step: int | None = None
    """Step of the outcome. A trajectory that waited has one outcome in each step."""
    task: str | None = None
    group: str | None = None
    outcome: str | None = None
    rule: str | None = None
    termination_reason: str | None = None
    name: str | None = None
    solved: bool | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    text: str | None = None
    """Part of the uid, the task's id or the error. Upper and lower case are equal."""
    among: Sequence[str] | None = None
    """Uids, for example the results of a search."""
    order: Order = "step"
    descending: bool = False
    offset: int = 0
    limit: int = 100

    def __post_init__(self) -> None:
        if self.order not in get_args(Order):
            raise ConfigError(
                "bad-query", f"Rows cannot be in the order of {self.order!r}.", f"Orders: {', '.join(_COLUMNS)}."
            )


@dataclass(frozen=True, kw_only=True)
class RolloutRow:
    """A trajectory and its outcome in a step."""

    step: int
    trajectory: str
    outcome: str
    rule: str
    group_id: str | None
    advantage: float | None
    rollout_step: int
    name: str
    task_id: str | None
    is_correct: bool | None
    termination_reason: str | None
    error: str | None
    reward_given: float | None
    reward_used: float | None
    turns: int | None
    sampled_tokens: int | None
    tokens: int | None


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """One page of rows."""

    total: int
    """Number of rows on all pages."""
    rows: Sequence[RolloutRow]


_FROM = "FROM outcomes o LEFT JOIN trajectories t USING (trajectory)"
_OF_OUTCOMES = {"step", "trajectory", "outcome", "rule", "group_id", "advantage", "rollout_step", "name"}
_SELECT = ", ".join(f"{'o' if each.name in _OF_OUTCOMES else 't'}.{each.name}" for each in fields(RolloutRow))


def find_rollouts(index: StepIndex, wanted: Filter) -> Rollouts:
    """Return the trajectories that match a filter."""
    where, parameters = _where(wanted)
    total = index.rows(f"SELECT count(*) AS n {_FROM} {where}", parameters)[0]["n"]
    direction = "DESC" if wanted.descending else "ASC"
    rows = index.rows(
        f"SELECT {_SELECT} {_FROM} {where} ORDER BY {_COLUMNS[wanted.order]} {direction} NULLS LAST, o.step, "
        "o.group_key, o.trajectory_key, o.trajectory LIMIT ? OFFSET ?",
        [*parameters, max(wanted.limit, 0), max(wanted.offset, 0)],
    )
    return Rollouts(total=total, rows=[RolloutRow(**row) for row in rows])


def rollout_steps(index: StepIndex, wanted: Filter) -> list[int]:
    """Return the steps in which matching trajectories were generated, the latest first."""
    where, parameters = _where(wanted)
    rows = index.rows(f"SELECT DISTINCT o.rollout_step AS step {_FROM} {where} ORDER BY step DESC", parameters)
    return [row["step"] for row in rows]


def _where(wanted: Filter) -> tuple[str, list[Any]]:
    """Return the conditions, with values as parameters, because the name of a task can look like SQL."""
    conditions = {
        "o.step = ?": wanted.step,
        "t.task_id = ?": wanted.task,
        "o.group_id = ?": wanted.group,
        "o.outcome = ?": wanted.outcome,
        "o.rule = ?": wanted.rule,
        "t.termination_reason = ?": wanted.termination_reason,
        "o.name = ?": wanted.name,
        "t.is_correct = ?": wanted.solved,
        "t.reward_given >= ?": wanted.reward_min,
        "t.reward_given <= ?": wanted.reward_max,
        "o.trajectory IN (SELECT unnest(?::VARCHAR[]))": wanted.among,
    }
    given = {condition: value for condition, value in conditions.items() if value is not None}
    parameters: list[Any] = list(given.values())
    words = list(given)
    if wanted.text:
        words.append(
            "(contains(lower(o.trajectory), ?) OR contains(lower(t.task_id), ?) OR contains(lower(t.error), ?))"
        )
        parameters += [wanted.text.lower()] * 3
    return (f"WHERE {' AND '.join(words)}" if words else ""), parameters
