"""The list of trajectories, by filters and by a phrase in their text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rllm_record.steps import StepFiles
from rllm_view.api.progress import refreshed
from rllm_view.api.questions import Query, filter_of, whole_number
from rllm_view.reading.record_files import fate_files
from rllm_view.reading.rollouts import find_attempts, played_steps
from rllm_view.reading.run import Run
from rllm_view.reading.searching import Search, search_text


def attempts(run: Run, query: Query) -> dict[str, Any]:
    """One page of trajectories. With `phrase` in the query, those whose text contains it.

    `until` continues a search at the step where an earlier one stopped.
    """
    wanted = filter_of({name: value for name, value in query.items() if name not in ("phrase", "until")})
    if wanted.step is not None:
        run.index.ensure([wanted.step])
    found = refreshed(run)
    search: Search | None = None
    if query.get("phrase"):
        newest = whole_number(query, "until") if query.get("until") else None
        steps = [step for step in played_steps(run.index, wanted) if newest is None or step <= newest]
        search = search_text(run.record, query["phrase"], steps)
        wanted = replace(wanted, among=search.uids)
    return found | {
        "found": find_attempts(run.index, wanted),
        "texts": has_texts(run),
        "search": search and {"steps": search.steps, "earlier": search.earlier},
    }


def has_texts(run: Run) -> bool:
    """True if the newest step was recorded with text."""
    newest = max(fate_files(run.record), default=None)
    return newest is not None and StepFiles(run.record).holds_tokens(newest)
