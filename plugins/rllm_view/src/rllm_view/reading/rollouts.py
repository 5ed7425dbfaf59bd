"""Trajectories by filters and by a phrase in their text, over all steps of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rllm_core.errors import ConfigError
from rllm_record.steps import RecordError, require_known_version
from rllm_record.steps.parquet import unreadable
from rllm_view.reading.index import StepIndex
from rllm_view.reading.record_files import files_of

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
MOST = 500
"""Maximum number of rows of one answer."""


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
        [*parameters, min(max(wanted.limit, 0), MOST), max(wanted.offset, 0)],
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


LONGEST = 1000
"""Maximum number of characters of a phrase."""
MOST_FOUND = 2000
"""Maximum number of trajectories of one search. After the step that exceeds it, no earlier step is read."""
MOST_BYTES = 64 * 2**20
"""Maximum size of the files that one search reads."""
_TURN = "trajectories.list.element.steps.list.element"
_LEAVES = [
    "task",
    "trajectories.list.element.uid",
    f"{_TURN}.text",
    f"{_TURN}.messages.list.element.text",
    f"{_TURN}.messages.list.element.data",
]


@dataclass(frozen=True, kw_only=True)
class Search:
    """The result of one search."""

    uids: Sequence[str]
    """Trajectories whose text contains the phrase."""
    steps: int
    """Number of steps that were read."""
    earlier: int | None
    """Latest step that was not read, because of the bounds. None if all steps were read."""


def search_text(record: Path, phrase: str, steps: Sequence[int]) -> Search:
    """Search for a phrase in upper or lower case, in `steps` one after the other, within the bounds.

    Args:
        record: directory of the record.
        phrase: text to find, not a pattern.
        steps: steps in which the trajectories were generated.

    Raises:
        ConfigError: the phrase is too long.
    """
    if len(phrase) > LONGEST:
        raise ConfigError(
            "bad-query", f"The phrase has {len(phrase)} characters.", f"Search for at most {LONGEST} characters."
        )
    files = files_of(record, "episodes")
    uids: list[str] = []
    size = 0
    for count, step in enumerate(steps):
        if len(uids) >= MOST_FOUND or size >= MOST_BYTES:
            return Search(uids=uids, steps=count, earlier=step)
        if step in files:
            try:
                size += files[step].stat().st_size
                uids += _uids_with(files[step], phrase)
            except (RecordError, OSError):
                # The page of the run reports files that cannot be read.
                continue
    return Search(uids=uids, steps=len(steps), earlier=None)


def _uids_with(file: Path, phrase: str) -> list[str]:
    try:
        with pq.ParquetFile(file) as opened:
            require_known_version(file, opened.schema_arrow.metadata)
            table = opened.read(columns=_LEAVES)
    except (OSError, pa.ArrowException) as error:
        raise unreadable(file, error) from error
    trajectories, of_episode = _flat(table["trajectories"].combine_chunks())
    turns, of_trajectory = _flat(trajectories.field("steps"))
    messages, of_turn = _flat(turns.field("messages"))
    in_turns = _has(turns.field("text"), phrase)
    in_json = json.dumps(phrase)[1:-1]
    in_messages = _has(messages.field("text"), phrase) | _has(messages.field("data"), in_json)
    in_turns[of_turn[in_messages]] = True
    found = _has(table["task"], in_json)[of_episode]
    found[of_trajectory[in_turns]] = True
    uids: list[str] = trajectories.field("uid").filter(pa.array(found)).to_pylist()
    return uids


def _flat(lists: Any) -> tuple[Any, np.ndarray[Any, Any]]:
    """Return the elements of all lists, and the position of each element's list."""
    return lists.flatten(), pc.list_parent_indices(lists).to_numpy()


def _has(texts: Any, phrase: str) -> np.ndarray[Any, Any]:
    found = pc.fill_null(pc.match_substring(texts, phrase, ignore_case=True), False)
    return np.array(found.to_pylist(), bool)
