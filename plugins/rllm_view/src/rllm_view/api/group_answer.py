"""A group side by side: its members with what was said in their turns."""

from __future__ import annotations

from typing import Any

from rllm_view.api.questions import Query, number_or, required, whole_number
from rllm_view.reading.rollout import read_attempt
from rllm_view.reading.rollouts import Filter, RolloutRow, find_attempts
from rllm_view.reading.run import Run

BESIDE = 8
"""Maximum number of members in one answer, because a screen cannot show more next to each other."""


def group(run: Run, query: Query) -> dict[str, Any]:
    """Return `BESIDE` members of a group, starting at `offset`."""
    step, name = whole_number(query, "step"), required(query, "group")
    run.require_step(step)
    run.index.ensure([step])
    offset = number_or(query, "offset", 0)
    found = find_attempts(run.index, Filter(step=step, group=name, offset=offset, limit=BESIDE))
    run.index.ensure({each.played_step for each in found.rows})
    return {
        "group": name,
        "step": step,
        "offset": offset,
        "total": found.total,
        "members": [{"row": row, "turns": _turns(run, row)} for row in found.rows],
    }


def _turns(run: Run, row: RolloutRow) -> list[dict[str, Any]]:
    attempt = read_attempt(run.record, row.played_step, row.trajectory)
    return [
        {"heard": turn.heard, "text": turn.text, "tokens": turn.end - turn.response_start} for turn in attempt.turns
    ]
