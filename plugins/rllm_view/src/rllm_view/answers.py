"""Answers: the data that the pages request about the runs of a library, by path."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from rllm_core.errors import ConfigError, RllmError
from rllm_record.run_files import find_runs, read_status
from rllm_record.steps import StepFiles
from rllm_view.as_json import pack_column
from rllm_view.comparison import compare
from rllm_view.reading.account import Account, account_of, facts_of
from rllm_view.reading.columns import Column
from rllm_view.reading.curves import panels_of
from rllm_view.reading.examples import find_examples
from rllm_view.reading.pending import pending_rollouts, pending_rows
from rllm_view.reading.record_files import outcome_files, state_of
from rllm_view.reading.rollout import read_rollout
from rllm_view.reading.rollouts import Filter, RolloutRow, find_rollouts, rollout_steps
from rllm_view.reading.run import Run, last_values, newest_first
from rllm_view.reading.steps import describe_step, groups_of, neighbors_of, step_summaries, steps_around
from rllm_view.reading.texts import Search, read_previews, search_text


class NotFoundError(RllmError):
    """The requested object does not exist."""


class Library:
    """Runs in some directories, including runs that start later. Safe to use from several threads."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = [directory.absolute() for directory in directories]
        self._runs: dict[str, Run] = {}
        self._lock = threading.Lock()

    def runs(self) -> list[Run]:
        """Return the existing runs, in order of their paths."""
        places = find_runs(self._directories)
        with self._lock:
            gone = self._runs.keys() - {place.id for place in places}
            for id in gone:
                # Another thread may be reading this run. Its memory is freed with the last reference.
                del self._runs[id]
            for place in places:
                if place.id not in self._runs:
                    self._runs[place.id] = Run(place)
            return [self._runs[place.id] for place in places]

    def run(self, id: str) -> Run:
        """Return the run with an id. Raise NotFoundError if it does not exist."""
        with self._lock:
            known = self._runs.get(id)
        found = known or next((run for run in self.runs() if run.place.id == id), None)
        if found is None:
            raise NotFoundError(
                "run-not-found", "This run does not exist any more, or this view shows other directories."
            )
        return found

    def close(self) -> None:
        """Free the memory of all runs."""
        with self._lock:
            for run in self._runs.values():
                run.close()
            self._runs.clear()


Query = Mapping[str, str]
_NUMBERS = {"step": int, "offset": int, "limit": int, "reward_min": float, "reward_max": float}
MOST_ROWS = 500
"""Maximum number of trajectories in one answer."""
_FLAGS = ("solved", "descending")
_TEXTS = ("task", "group", "outcome", "rule", "termination_reason", "name", "text", "order")
SHOWN = (
    "uid", "episode", "name", "step", "batch", "task_id", "data_source", "is_correct", "termination_reason", "error",
    "tries", "metrics", "task", "turns", "length", "reward_given", "reward_used",
)  # fmt: skip


def account_json(account: Account) -> dict[str, Any]:
    """Return the data for the page of a trajectory."""
    rollout = account.rollout
    return {
        "rollout": {name: getattr(rollout, name) for name in SHOWN},
        "decided": account.decided,
        "group": account.group,
        "facts": facts_of(account),
        "columns": [_column(each) for each in account.columns],
        "ids": rollout.ids,
        "texts": account.texts,
        "objective": account.objective,
    }


def _column(column: Column) -> dict[str, Any]:
    return {
        "id": column.id,
        "title": column.title,
        "unit": column.unit,
        "epoch": column.epoch,
        "missing": column.missing,
        "words": column.words,
        "column": pack_column(column.values),
    }


PENDING_ROWS = 20
"""Maximum number of pending rollouts in one answer. The page requests them each second."""
MEMBERS = 8
"""Maximum number of members in one answer, because a screen cannot show more next to each other."""


def group(run: Run, query: Query) -> dict[str, Any]:
    """Return `MEMBERS` members of a group, starting at `offset`."""
    step, name = whole_number(query, "step"), require_value(query, "group")
    run.require_step(step)
    run.index.ensure([step])
    offset = number_or(query, "offset", 0)
    found = find_rollouts(run.index, Filter(step=step, group=name, offset=offset, limit=MEMBERS))
    run.index.ensure({each.rollout_step for each in found.rows})
    return {
        "group": name,
        "step": step,
        "offset": offset,
        "total": found.total,
        "members": [{"row": row, "turns": _turns(run, row)} for row in found.rows],
    }


def _turns(run: Run, row: RolloutRow) -> list[dict[str, Any]]:
    rollout = read_rollout(run.record, row.rollout_step, row.trajectory)
    return [
        {"observations": turn.observations, "text": turn.text, "tokens": turn.end - turn.response_start}
        for turn in rollout.turns
    ]


WAIT = 0.3
"""Seconds that an answer waits for steps that are not in memory yet."""


def refresh_steps(run: Run) -> dict[str, int]:
    """Read new steps for a moment, and return how many of the recorded steps are read."""
    run.index.refresh_for(WAIT)
    return {"indexed": len(run.index.steps()) + len(run.index.problems), "recorded": len(outcome_files(run.record))}


def rollouts(run: Run, query: Query) -> dict[str, Any]:
    """Return one page of trajectories. With `phrase` in the query, return those whose text contains it.

    `until` continues a search at the step where an earlier one stopped.
    """
    wanted = filter_of({name: value for name, value in query.items() if name not in ("phrase", "until")})
    if wanted.step is not None:
        run.index.ensure([wanted.step])
    found = refresh_steps(run)
    search: Search | None = None
    if query.get("phrase"):
        latest = whole_number(query, "until") if query.get("until") else None
        steps = [step for step in rollout_steps(run.index, wanted) if latest is None or step <= latest]
        search = search_text(run.record, query["phrase"], steps)
        wanted = replace(wanted, among=search.uids)
    listed = find_rollouts(run.index, wanted)
    return found | {
        "found": listed,
        "previews": read_previews(run.record, [(row.rollout_step, row.trajectory) for row in listed.rows]),
        "texts": has_texts(run),
        "search": search and {"steps": search.steps, "earlier": search.earlier},
    }


def examples(run: Run, query: Query) -> dict[str, Any]:
    """Return the examples of the steps from `first` to `last`. The default is the latest step."""
    recorded = outcome_files(run.record)
    last = number_or(query, "last", max(recorded, default=0))
    run.require_step(last)
    return examples_of(run, number_or(query, "first", last), last, recorded)


def examples_of(run: Run, first: int, last: int, recorded: Iterable[int]) -> dict[str, Any]:
    """Return the data for the page of examples. `recorded` are the steps that have such a page."""
    found = {"first": first, "last": last, "examples": find_examples(run.record, first, last)}
    return found | steps_around(recorded, last)


def has_texts(run: Run) -> bool:
    """True if the latest step was recorded with text."""
    latest = max(outcome_files(run.record), default=None)
    return latest is not None and StepFiles(run.record).has_tokens(latest)


class Answers:
    """Answers to queries about a library's runs."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._of_runs: dict[str, Callable[[Run, Query], Any]] = {
            "": overview,
            "state": state,
            "curves": curves,
            "steps": steps,
            "step": one_step,
            "rollouts": rollouts,
            "examples": examples,
            "group": group,
            "episode": episode,
        }

    def answer(self, path: str, query: Query) -> Any:
        """Return the answer to a query, for `as_json`.

        Args:
            path: ``runs``, ``compare``, ``runs/ID``, or ``runs/ID/WHAT``.
            query: the query's values by name.

        Raises:
            RllmError: the query is invalid, or a file cannot be read.
        """
        match path.split("/"):
            case ["runs"]:
                return {"runs": newest_first(run.summary() for run in self.library.runs())}
            case ["compare"]:
                return compare([self.library.run(id) for id in require_value(query, "runs").split(",")])
            case ["runs", id, *what] if len(what) < 2 and "".join(what) in self._of_runs:
                return self._of_runs["".join(what)](self.library.run(id), query)
        raise NotFoundError("page-not-found", f"{path!r} is not a page.")


def state(run: Run, query: Query) -> dict[str, Any]:
    """Return a version that changes when a page may have something new to show, and the longest pending rollouts."""
    recorded = outcome_files(run.record)
    latest = state_of(recorded[max(recorded)]) if recorded else None
    lines = run.lines()
    # Steps that are read in the background after an answer are also new.
    steps = f"{len(lines)}-{len(recorded)}-{latest}-{len(run.index.steps())}-{len(run.index.problems)}"
    version = f"{steps}-{read_status(run.place.directory)}"
    waits = pending_rollouts(run)
    return {
        "version": version,
        "last_step": max(recorded, default=None),
        "name": run.place.name,
        "pending": {"total": waits.total, "rows": pending_rows(waits.rows[:PENDING_ROWS], time.time())},
    }


def overview(run: Run, query: Query) -> dict[str, Any]:
    refresh_steps(run)
    return describe_run(run)


def describe_run(run: Run) -> dict[str, Any]:
    """Return the data for the head of a run's page, with the problems of the steps in the index."""
    lines = run.lines()
    values = last_values(lines)
    return {
        "run": run.summary(),
        "given": run.settings().given,
        "plugins": run.plugins(),
        "validation": {name: value for name, value in values.items() if name.startswith("val/")},
        "problems": run.problems(),
    }


def curves(run: Run, query: Query) -> dict[str, Any]:
    return panels_of(run.lines(), names_in(query, "metrics"))


def steps(run: Run, query: Query) -> dict[str, Any]:
    return refresh_steps(run) | {"steps": step_summaries(run.index, run.lines())}


def one_step(run: Run, query: Query) -> dict[str, Any]:
    step = whole_number(query, "step")
    run.require_step(step)
    run.index.ensure([step])
    groups = groups_of(run.index, [step])[step]
    previews = read_previews(run.record, [(each.first_step, each.first) for each in groups])
    found = describe_step(step, step_summaries(run.index, run.lines()), groups, outcome_files(run.record))
    return found | {"previews": previews}


def episode(run: Run, query: Query) -> dict[str, Any]:
    step = whole_number(query, "step")
    run.require_step(step)
    run.index.ensure([step])
    uid = require_value(query, "uid")
    account = account_json(account_of(run, step, uid))
    return account | {"neighbors": neighbors_of(run.index, step, uid)} | steps_around(outcome_files(run.record), step)


def require_value(query: Query, name: str) -> str:
    """Return a value of the query. Raise ConfigError if it is missing."""
    if name not in query:
        raise ConfigError("bad-query", f"The query has no {name!r}.")
    return query[name]


def whole_number(query: Query, name: str) -> int:
    """Return a whole number of the query. Raise ConfigError if it is missing or not a whole number."""
    return int(_number(name, require_value(query, name), int))


def number_or(query: Query, name: str, otherwise: int) -> int:
    """Return a whole number, or `otherwise` if it is missing. Raise ConfigError if it is not a whole number."""
    return whole_number(query, name) if name in query else otherwise


def names_in(query: Query, name: str) -> list[str]:
    """Return a comma-separated list of names. Commas in names are percent-encoded. Empty if the value is missing."""
    return [unquote(each) for each in query.get(name, "").split(",") if each]


def filter_of(query: Query) -> Filter:
    """Return the filter for `find_rollouts`. Empty values are ignored.

    Raises:
        ConfigError: a value has the wrong type.
    """
    found: dict[str, Any] = {}
    for name, value in query.items():
        if value == "":
            continue
        if name in _NUMBERS:
            found[name] = _number(name, value, _NUMBERS[name])
        elif name in _FLAGS:
            found[name] = _flag(name, value)
        elif name in _TEXTS:
            found[name] = value
        else:
            raise ConfigError("bad-query", f"Rows cannot be filtered by {name!r}.")
    if "limit" in found:
        found["limit"] = min(found["limit"], MOST_ROWS)
    return Filter(**found)


def _number(name: str, value: str, of: Any) -> Any:
    try:
        return of(value)
    except ValueError as error:
        raise ConfigError("bad-query", f"{name}={value!r} is not a number.") from error


def _flag(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise ConfigError("bad-query", f"{name}={value!r} is neither true nor false.")
    return value == "true"
