"""Trajectories by filters, over all steps of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from rllm_core.errors import ConfigError
from rllm_view.reading.index import StepIndex

Order = Literal[
    "step", "trajectory", "task", "fate", "ending", "solved", "reward", "advantage", "turns", "tokens"
]  # fmt: skip
_COLUMNS = {
    "step": "f.step",
    "trajectory": "f.trajectory_key",
    "task": "natural_key(p.task_id)",
    "fate": "f.fate",
    "ending": "p.ending",
    "solved": "p.is_correct",
    "reward": "p.reward_given",
    "advantage": "f.advantage",
    "turns": "p.turns",
    "tokens": "p.sampled_tokens",
}
MOST = 500
"""Rows of one answer."""


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which trajectories, and in which order. None: any."""

    step: int | None = None
    """Step of the outcome. A trajectory that waited has one outcome in each step."""
    task: str | None = None
    group: str | None = None
    fate: str | None = None
    rule: str | None = None
    ending: str | None = None
    name: str | None = None
    solved: bool | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    text: str | None = None
    """Part of the uid, of the task's id or of the error, in upper or lower case."""
    among: Sequence[str] | None = None
    """Uids, such as those that a search found."""
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
    fate: str
    rule: str
    group_id: str | None
    advantage: float | None
    played_step: int
    name: str
    task_id: str | None
    is_correct: bool | None
    ending: str | None
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
    """Rows on all pages."""
    rows: Sequence[RolloutRow]


_FROM = "FROM fates f LEFT JOIN played p USING (trajectory)"
_OF_FATES = {"step", "trajectory", "fate", "rule", "group_id", "advantage", "played_step", "name"}
_SELECT = ", ".join(f"{'f' if each.name in _OF_FATES else 'p'}.{each.name}" for each in fields(RolloutRow))


def find_attempts(index: StepIndex, wanted: Filter) -> Rollouts:
    """The trajectories that a filter lets through."""
    where, parameters = _where(wanted)
    total = index.rows(f"SELECT count(*) AS n {_FROM} {where}", parameters)[0]["n"]
    direction = "DESC" if wanted.descending else "ASC"
    rows = index.rows(
        f"SELECT {_SELECT} {_FROM} {where} ORDER BY {_COLUMNS[wanted.order]} {direction} NULLS LAST, f.step, "
        "f.group_key, f.trajectory_key, f.trajectory LIMIT ? OFFSET ?",
        [*parameters, min(max(wanted.limit, 0), MOST), max(wanted.offset, 0)],
    )
    return Rollouts(total=total, rows=[RolloutRow(**row) for row in rows])


def played_steps(index: StepIndex, wanted: Filter) -> list[int]:
    """Steps in which the trajectories were played that a filter lets through, the newest first."""
    where, parameters = _where(wanted)
    rows = index.rows(f"SELECT DISTINCT f.played_step AS step {_FROM} {where} ORDER BY step DESC", parameters)
    return [row["step"] for row in rows]


def _where(wanted: Filter) -> tuple[str, list[Any]]:
    """Values go as parameters: a task may be named like a query."""
    conditions = {
        "f.step = ?": wanted.step,
        "p.task_id = ?": wanted.task,
        "f.group_id = ?": wanted.group,
        "f.fate = ?": wanted.fate,
        "f.rule = ?": wanted.rule,
        "p.ending = ?": wanted.ending,
        "f.name = ?": wanted.name,
        "p.is_correct = ?": wanted.solved,
        "p.reward_given >= ?": wanted.reward_min,
        "p.reward_given <= ?": wanted.reward_max,
        "f.trajectory IN (SELECT unnest(?::VARCHAR[]))": wanted.among,
    }
    given = {condition: value for condition, value in conditions.items() if value is not None}
    parameters: list[Any] = list(given.values())
    words = list(given)
    if wanted.text:
        words.append(
            "(contains(lower(f.trajectory), ?) OR contains(lower(p.task_id), ?) OR contains(lower(p.error), ?))"
        )
        parameters += [wanted.text.lower()] * 3
    return (f"WHERE {' AND '.join(words)}" if words else ""), parameters
