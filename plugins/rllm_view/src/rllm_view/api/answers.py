"""Answers: what the pages ask for, by path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rllm_view.api.account_json import account_json
from rllm_view.api.comparing import compare
from rllm_view.api.group_answer import group
from rllm_view.api.library import Library, NotFoundError
from rllm_view.api.progress import refreshed
from rllm_view.api.questions import Query, names_in, required, whole_number
from rllm_view.api.rollouts_answer import attempts as attempts_answer
from rllm_view.reading.account import account_of
from rllm_view.reading.curves import panels_of
from rllm_view.reading.metrics import last_values
from rllm_view.reading.neighbours import neighbours_of, steps_around
from rllm_view.reading.record_files import fate_files, state_of
from rllm_view.reading.run import Run
from rllm_view.reading.steps import groups_of, step_summaries


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
            "attempts": attempts_answer,
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
                return {"runs": [run.summary() for run in self.library.runs()]}
            case ["compare"]:
                return compare([self.library.run(id) for id in required(query, "runs").split(",")])
            case ["runs", id, *what] if len(what) < 2 and "".join(what) in self._of_runs:
                return self._of_runs["".join(what)](self.library.run(id), query)
        raise NotFoundError("page-not-found", f"There is nothing at {path!r}.")


def state(run: Run, query: Query) -> dict[str, Any]:
    """Changes whenever a page may have something new to show."""
    recorded = fate_files(run.record)
    newest = state_of(recorded[max(recorded)]) if recorded else None
    lines = run.lines()
    # Steps that are read in behind an answer are new, too.
    version = f"{len(lines)}-{len(recorded)}-{newest}-{len(run.index.steps())}-{len(run.index.problems)}"
    return {"version": version, "last_step": max(recorded, default=None), "name": run.place.name}


def overview(run: Run, query: Query) -> dict[str, Any]:
    refreshed(run)
    lines = run.lines()
    values = last_values(lines)
    return {
        "run": run.summary(),
        "given": run.settings().given,
        "plugins": run.plugins(),
        "validation": {name: value for name, value in values.items() if name.startswith("val/")},
        "problems": run.problems(),
        "recorded": sorted(fate_files(run.record)),
    }


def curves(run: Run, query: Query) -> dict[str, Any]:
    return panels_of(run.lines(), names_in(query, "metrics"))


def steps(run: Run, query: Query) -> dict[str, Any]:
    return refreshed(run) | {"steps": step_summaries(run.index, run.lines())}


def one_step(run: Run, query: Query) -> dict[str, Any]:
    step = whole_number(query, "step")
    run.require_step(step)
    run.index.ensure([step])
    summary = [each for each in step_summaries(run.index, run.lines()) if each.step == step]
    found = {"step": step, "summary": summary[0] if summary else None, "groups": groups_of(run.index, step)}
    return found | _around(run, step)


def episode(run: Run, query: Query) -> dict[str, Any]:
    step = whole_number(query, "step")
    run.require_step(step)
    run.index.ensure([step])
    uid = required(query, "uid")
    account = account_json(account_of(run, step, uid))
    return account | {"neighbours": neighbours_of(run.index, step, uid)} | _around(run, step)


def _around(run: Run, step: int) -> dict[str, Any]:
    before, after = steps_around(sorted(fate_files(run.record)), step)
    return {"previous_step": before, "next_step": after}
