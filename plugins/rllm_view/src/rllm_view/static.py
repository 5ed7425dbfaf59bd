"""The pages as one file for a mail, an archive or a browser without a server. It contains style, script and answers."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rllm_core.errors import ConfigError
from rllm_core.files import write_atomically
from rllm_view.answers import Answers, Library, account_json, describe_run, examples_of
from rllm_view.as_json import as_json
from rllm_view.comparison import MOST_RUNS
from rllm_view.pages import PAGE, assets
from rllm_view.reading.account import account_of
from rllm_view.reading.curves import metric_names, panels_of
from rllm_view.reading.record_files import outcome_files
from rllm_view.reading.rollouts import Filter, find_rollouts
from rllm_view.reading.run import ChangedValue, Run
from rllm_view.reading.steps import describe_step, groups_of, neighbors_of, step_summaries, steps_around

STEPS = 100
"""Number of latest steps that have a page, so that the copy of a long run is also small and quick to write."""
EXAMPLE_STEPS = 10
"""Number of latest steps that have a page of examples, because it needs the text of all their rollouts."""
ROWS = 5000
"""Number of latest trajectories in the list of a run."""


def contents_of(answers: Answers, episodes: int) -> dict[str, Any]:
    """Return the answers of a copy, for all runs of a library.

    Args:
        answers: the answers of the library.
        episodes: maximum number of trajectories of a run with their tokens.
    """
    runs = answers.library.runs()
    found = {run.place.id: _of_run(run, episodes) for run in runs}
    ids = ",".join(found)
    return {
        "about": {"episodes": sum(len(each) for run in found.values() for each in run["episode"].values())},
        "runs": found,
        "compare": answers.answer("compare", {"runs": ids}) if 2 <= len(runs) <= MOST_RUNS else None,
    }


def _of_run(run: Run, episodes: int) -> dict[str, Any]:
    latest = sorted(outcome_files(run.record))[-STEPS:]
    run.index.ensure(latest)
    readable = [step for step in latest if step in run.index.steps()]
    lines = run.lines()
    summaries, groups = step_summaries(run.index, lines), groups_of(run.index, readable)
    copy: dict[str, Any] = {"group": defaultdict(dict), "episode": defaultdict(dict)}
    for step, group, uids in _groups(run, readable, episodes):
        accounts = {uid: _account(run, readable, step, uid) for uid in uids}
        copy["episode"][step] |= accounts
        copy["group"][step][group] = _group(run, step, group, accounts)
    return copy | {
        "overview": describe_run(run),
        "curves": panels_of(lines, metric_names(lines)),
        "steps": {
            "steps": [each for each in summaries if each.step in readable],
            "indexed": len(readable),
            "recorded": len(outcome_files(run.record)),
        },
        "step": {step: describe_step(step, summaries, groups[step], readable) for step in readable},
        "examples": {
            step: examples_of(run, step, step, readable[-EXAMPLE_STEPS:]) for step in readable[-EXAMPLE_STEPS:]
        },
        "rows": find_rollouts(run.index, Filter(order="step", descending=True, limit=ROWS)).rows,
    }


def _groups(run: Run, steps: list[int], episodes: int) -> Iterator[tuple[int, str, list[str]]]:
    """Yield step, group and uids of whole groups up to the limit, the latest steps first."""
    query = """
    SELECT coalesce(group_id, '') AS name, list(trajectory ORDER BY trajectory_key) AS uids FROM outcomes WHERE step = ?
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
    around = {"neighbors": neighbors_of(run.index, step, uid)}
    return account_json(account_of(run, step, uid)) | around | steps_around(steps, step)


def _group(run: Run, step: int, group: str, accounts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same answer as the server, with all members."""
    uids = list(accounts)
    rows = find_rollouts(run.index, Filter(step=step, group=group or None, limit=len(uids))).rows
    members = [
        {"row": row, "turns": accounts[row.trajectory]["rollout"]["turns"]} for row in rows if row.trajectory in uids
    ]
    return {"group": group, "step": step, "offset": 0, "total": len(members), "members": members}


EPISODES = 100


def write_page(
    directories: Sequence[Path], out: Path, episodes: int = EPISODES, given: Sequence[ChangedValue] | None = None
) -> None:
    """Write the pages of runs as one file that a browser opens without a server.

    Args:
        directories: runs, and directories of runs.
        out: the file, replaced as a whole.
        episodes: maximum number of trajectories of each run with their tokens: whole groups of the latest steps.
        given: values of the runs that are not defaults. None: the values that their users set.

    Raises:
        ConfigError: the directories contain no run.
        RecordError: a file of the record cannot be read.
    """
    library = Library(directories)
    try:
        runs = library.runs()
        if not runs:
            raise ConfigError(
                "run-not-found",
                f"No run was found in {', '.join(map(str, directories))}.",
                "Use a run directory. `rllm runs list` lists them.",
            )
        contents = contents_of(Answers(library), episodes)
        if given is not None:
            for run in contents["runs"].values():
                run["overview"]["given"] = given
    finally:
        library.close()
    start = f"#/run/{runs[0].place.id}" if len(runs) == 1 else "#/"
    write_atomically(out, page_of(as_json(contents), start))


def page_of(contents: bytes, start: str) -> str:
    """Return the file. `contents` is JSON, and `start` is the address that it opens."""
    script, style = join_modules(), assets()["style.css"].body.decode()
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    # In base64, no text of a model can close the element.
    data = base64.b64encode(gzip.compress(contents, mtime=0)).decode()
    head = f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n<style>{style}</style>\n'
    copy = f'<script id="copy" type="application/octet-stream" data-start="{escape(start)}">{data}</script>\n'
    page = re.sub(r"<(link|script) .*\n", "", assets()[PAGE].body.decode())
    page = page.replace("</head>", f"{head}</head>")
    return page.replace("</body>", f"{copy}<script>{script}</script>\n</body>")


def join_modules() -> str:
    """Return the modules of the pages as one script, because a file that is opened from a disk may import none.

    The modules have no top-level name in common, and only the last module runs code when it is loaded.
    """
    names = sorted((name for name in assets() if name.endswith(".js")), key=lambda name: (name == "main.js", name))
    text = "".join(assets()[name].body.decode() for name in names)
    text = re.sub(r"^(import .*\n|export )", "", text, flags=re.MULTILINE)
    return f'"use strict";\n(() => {{\n{text}}})();\n'


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
