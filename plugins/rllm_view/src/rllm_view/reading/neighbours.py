"""Which trajectories and steps come before and after: what keys of the pages go to."""

from __future__ import annotations

from dataclasses import dataclass

from rllm_view.reading.index import StepIndex


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """Neighbours of a trajectory in a step, in the order of groups and uids. None if a neighbour does not exist."""

    position: int
    """Position in the step, from 0."""
    total: int
    previous: str | None
    next: str | None
    previous_group: str | None
    """The first trajectory of the group before."""
    next_group: str | None


_QUERY = """
WITH ordered AS (
    SELECT trajectory, place,
        row_number() OVER around - 1 AS position, count(*) OVER () AS total,
        lag(trajectory) OVER around AS previous, lead(trajectory) OVER around AS next
    FROM (SELECT *, coalesce(group_key || ' ' || group_id, '') AS place FROM fates WHERE step = ?)
    WINDOW around AS (ORDER BY place, trajectory_key, trajectory)),
firsts AS (SELECT place, arg_min(trajectory, position) AS first FROM ordered GROUP BY place)
SELECT position, total, previous, next,
    (SELECT first FROM firsts WHERE firsts.place < ordered.place ORDER BY place DESC LIMIT 1) AS previous_group,
    (SELECT first FROM firsts WHERE firsts.place > ordered.place ORDER BY place LIMIT 1) AS next_group
FROM ordered WHERE trajectory = ?
"""


def neighbours_of(index: StepIndex, step: int, uid: str) -> Neighbours | None:
    """Return the neighbours of a trajectory. None if the trajectory has no outcome in the step."""
    rows = index.rows(_QUERY, [step, uid])
    return Neighbours(**rows[0]) if rows else None


def steps_around(recorded: list[int], step: int) -> tuple[int | None, int | None]:
    """The recorded steps before and after a step."""
    before = max((each for each in recorded if each < step), default=None)
    return before, min((each for each in recorded if each > step), default=None)
