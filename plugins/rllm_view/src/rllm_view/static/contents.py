"""Content of a static page: complete curves, and a limited number of complete groups from the newest steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from rllm_view.api.account_json import account_json
from rllm_view.api.answers import Answers
from rllm_view.api.comparing import MOST_RUNS
from rllm_view.reading.account import account_of
from rllm_view.reading.curves import metric_names, panels_of
from rllm_view.reading.neighbours import neighbours_of
from rllm_view.reading.record_files import fate_files
from rllm_view.reading.rollouts import Filter, find_attempts
from rllm_view.reading.run import Run

STEPS = 100
"""Newest steps of a run that have a page: a copy stays small, and quick to make, however long the run is."""
ROWS = 5000
"""Newest trajectories of a run in its list."""


def contents_of(answers: Answers, episodes: int) -> dict[str, Any]:
    """The answers of a copy, for all runs of a library.

    Args:
        answers: of the library.
        episodes: most trajectories of a run that are there with their tokens.
    """
    runs = answers.library.runs()
    found = {run.place.id: _of_run(answers, run, episodes) for run in runs}
    ids = ",".join(found)
    return {
        "about": {"episodes": sum(len(each) for run in found.values() for each in run["episode"].values())},
        "runs": found,
        "compare": answers.answer("compare", {"runs": ids}) if 2 <= len(runs) <= MOST_RUNS else None,
    }


def _of_run(answers: Answers, run: Run, episodes: int) -> dict[str, Any]:
    newest = sorted(fate_files(run.record))[-STEPS:]
    run.index.ensure(newest)
    readable = [step for step in newest if step in run.index.steps()]
    path, lines = f"runs/{run.place.id}", run.lines()
    copy: dict[str, Any] = {"group": defaultdict(dict), "episode": defaultdict(dict)}
    for step, group, uids in _groups(run, readable, episodes):
        accounts = {uid: _account(run, readable, step, uid) for uid in uids}
        copy["episode"][step] |= accounts
        copy["group"][step][group] = _group(run, step, group, accounts)
    return copy | {
        "overview": answers.answer(path, {}),
        "curves": panels_of(lines, metric_names(lines)),
        "steps": answers.answer(f"{path}/steps", {}),
        "step": {step: answers.answer(f"{path}/step", {"step": str(step)}) for step in readable},
        "rows": _rows(run),
    }


def _groups(run: Run, steps: list[int], episodes: int) -> Iterator[tuple[int, str, list[str]]]:
    """Step, group and uids: whole groups, the newest steps first, as long as they fit."""
    query = """
    SELECT coalesce(group_id, '') AS name, list(trajectory ORDER BY trajectory_key) AS uids FROM fates WHERE step = ?
    GROUP BY group_id ORDER BY natural_key(group_id) NULLS LAST
    """
    left = episodes
    for step in reversed(steps):
        for row in run.index.rows(query, [step]):
            if len(row["uids"]) > left:
                return
            left -= len(row["uids"])
            yield step, row["name"], row["uids"]


def _account(run: Run, steps: list[int], step: int, uid: str) -> dict[str, Any]:
    around = {"neighbours": neighbours_of(run.index, step, uid)}
    return account_json(account_of(run, step, uid)) | around | _steps_around(steps, step)


def _group(run: Run, step: int, group: str, accounts: Mapping[str, Any]) -> dict[str, Any]:
    """As a server answers, with all members."""
    uids = list(accounts)
    rows = find_attempts(run.index, Filter(step=step, group=group or None, limit=len(uids))).rows
    members = [
        {"row": row, "turns": accounts[row.trajectory]["attempt"]["turns"]} for row in rows if row.trajectory in uids
    ]
    return {"group": group, "step": step, "offset": 0, "total": len(members), "members": members}


def _steps_around(steps: list[int], step: int) -> dict[str, Any]:
    place = steps.index(step)
    after = steps[place + 1] if place + 1 < len(steps) else None
    return {"previous_step": steps[place - 1] if place else None, "next_step": after}


def _rows(run: Run) -> list[Any]:
    rows: list[Any] = []
    while len(rows) < ROWS:
        more = find_attempts(run.index, Filter(order="step", descending=True, offset=len(rows), limit=500)).rows
        if not more:
            break
        rows += more
    return rows
