"""Outcomes of each step's trajectories: generated → masked → rejected → trained → clipped, and their order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllm_view.reading.index import StepIndex


@dataclass(frozen=True, kw_only=True)
class DecisionCount:
    """Number of trajectories with one outcome by one rule."""

    outcome: str
    rule: str
    trajectories: int


@dataclass(frozen=True, kw_only=True)
class StepSummary:
    """Results of one training step."""

    step: int
    generated: int
    """Number of trajectories generated in this step."""
    waited: int
    """Number of trajectories that were generated in an earlier step and have an outcome in this step."""
    masked: int
    dropped: int
    waiting: int
    trained: int
    trained_groups: int
    gradient_groups: int
    """Number of trained groups with an advantage other than 0. In the others the policy loss has no gradient."""
    clipped: float | None
    """Share of the trained tokens that the loss clips. None: not in the metrics."""
    reward: float | None
    """Mean of the rewards given in this step."""
    solved: float | None
    """Share of this step's rollouts that are solved. None if they have no rewards."""
    decisions: Sequence[DecisionCount]


_OUTCOMES = """
SELECT step, outcome, rule, count(*) AS n, count(*) FILTER (rollout_step = step) AS here
FROM outcomes GROUP BY ALL ORDER BY step, n DESC, rule
"""
_TRAINED = """
SELECT step, count(DISTINCT group_id) AS trained_groups,
    count(DISTINCT group_id) FILTER (advantage IS DISTINCT FROM 0) AS gradient_groups
FROM outcomes WHERE outcome = 'trained' GROUP BY step
"""
_GENERATED = """
SELECT rollout_step AS step, avg(reward_given) FILTER (isfinite(reward_given)) AS reward,
    CASE WHEN count(reward_given) > 0 THEN avg(is_correct::INTEGER) END AS solved
FROM trajectories GROUP BY ALL
"""


def step_summaries(index: StepIndex, lines: Sequence[Mapping[str, Any]]) -> list[StepSummary]:
    """Return all recorded steps, in order. `lines` are the lines of the run's metrics file."""
    decisions: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in index.rows(_OUTCOMES):
        decisions[row["step"]].append(row)
    generated = {row.pop("step"): row for row in index.rows(_GENERATED)}
    trained = {row.pop("step"): row for row in index.rows(_TRAINED)}
    clipped = {line["step"]: line["actor/clip_fraction"] for line in lines if "actor/clip_fraction" in line}
    return [
        _summary(step, rows, clipped.get(step), {**NO_ROLLOUTS, **generated.get(step, {}), **trained.get(step, {})})
        for step, rows in decisions.items()
    ]


NO_ROLLOUTS = {"reward": None, "solved": None, "trained_groups": 0, "gradient_groups": 0}
"""Values of a step that generates and trains nothing."""


def _summary(
    step: int, rows: Sequence[Mapping[str, Any]], clipped: float | None, values: Mapping[str, Any]
) -> StepSummary:
    def having(outcome: str) -> int:
        return sum(row["n"] for row in rows if row["outcome"] == outcome)

    here = sum(row["here"] for row in rows)
    return StepSummary(
        step=step,
        generated=here,
        waited=sum(row["n"] for row in rows) - here,
        masked=having("masked"),
        dropped=having("dropped"),
        waiting=having("waiting"),
        trained=having("trained"),
        clipped=clipped,
        decisions=[DecisionCount(outcome=row["outcome"], rule=row["rule"], trajectories=row["n"]) for row in rows],
        **values,
    )


@dataclass(frozen=True, kw_only=True)
class GroupSummary:
    """Trajectories that a step compares with each other."""

    group: str
    first: str
    """Uid of the first trajectory."""
    first_step: int
    """Step in which the first trajectory was generated."""
    task_id: str | None
    outcome: str
    rule: str
    trajectories: int
    solved: int
    reward_mean: float | None
    reward_min: float | None
    reward_max: float | None


_GROUPS = """
SELECT o.step, o.group_id AS "group", arg_min(o.trajectory, o.trajectory_key) AS first,
    arg_min(o.rollout_step, o.trajectory_key) AS first_step,
    min(t.task_id) AS task_id, min(o.outcome) AS outcome, min(o.rule) AS rule,
    count(*) AS trajectories, coalesce(sum(t.is_correct::INTEGER), 0)::INTEGER AS solved,
    avg(t.reward_given) AS reward_mean, min(t.reward_given) AS reward_min, max(t.reward_given) AS reward_max
FROM outcomes o LEFT JOIN trajectories t USING (trajectory)
WHERE list_contains(?, o.step) AND o.group_id IS NOT NULL
GROUP BY o.step, o.group_id, o.group_key ORDER BY o.group_key
"""


def groups_of(index: StepIndex, steps: Sequence[int]) -> dict[int, list[GroupSummary]]:
    """Return the groups of each step, in order of their ids. One query for all steps, because each takes some ms."""
    found: dict[int, list[GroupSummary]] = {step: [] for step in steps}
    for row in index.rows(_GROUPS, [[*steps]]):
        found[row.pop("step")].append(GroupSummary(**row))
    return found


@dataclass(frozen=True, kw_only=True)
class Neighbors:
    """Neighbors of a trajectory in a step, in the order of groups and uids. None if a neighbor does not exist."""

    position: int
    """Position in the step, from 0."""
    total: int
    previous: str | None
    next: str | None
    previous_group: str | None
    """The first trajectory of the previous group."""
    next_group: str | None


_QUERY = """
WITH ordered AS (
    SELECT trajectory, place,
        row_number() OVER around - 1 AS position, count(*) OVER () AS total,
        lag(trajectory) OVER around AS previous, lead(trajectory) OVER around AS next
    FROM (SELECT *, coalesce(group_key || ' ' || group_id, '') AS place FROM outcomes WHERE step = ?)
    WINDOW around AS (ORDER BY place, trajectory_key, trajectory)),
firsts AS (SELECT place, arg_min(trajectory, position) AS first FROM ordered GROUP BY place)
SELECT position, total, previous, next,
    (SELECT first FROM firsts WHERE firsts.place < ordered.place ORDER BY place DESC LIMIT 1) AS previous_group,
    (SELECT first FROM firsts WHERE firsts.place > ordered.place ORDER BY place LIMIT 1) AS next_group
FROM ordered WHERE trajectory = ?
"""


def neighbors_of(index: StepIndex, step: int, uid: str) -> Neighbors | None:
    """Return the neighbors of a trajectory. None if the trajectory has no outcome in the step."""
    rows = index.rows(_QUERY, [step, uid])
    return Neighbors(**rows[0]) if rows else None


def steps_around(recorded: Iterable[int], step: int) -> dict[str, int | None]:
    """Return the recorded steps before and after a step, for its page. None if there is no such step."""
    known = list(recorded)
    return {
        "previous_step": max((each for each in known if each < step), default=None),
        "next_step": min((each for each in known if each > step), default=None),
    }


def describe_step(
    step: int, summaries: Iterable[StepSummary], groups: Sequence[GroupSummary], recorded: Iterable[int]
) -> dict[str, Any]:
    """Return the data for the page of a step. `recorded` are the steps that have such a page."""
    summary = next((each for each in summaries if each.step == step), None)
    return {"step": step, "summary": summary, "groups": groups} | steps_around(recorded, step)
