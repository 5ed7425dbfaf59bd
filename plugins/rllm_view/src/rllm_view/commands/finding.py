"""Find the run, the step and the trajectory for RUN, STEP and UID on the command line."""

from __future__ import annotations

from pathlib import Path

from rllm_core.errors import ConfigError
from rllm_record.run_places import one_run
from rllm_view.reading.account import Account, account_of
from rllm_view.reading.run import Run

_TRAJECTORIES = """
SELECT f.trajectory, p.task_id FROM fates f LEFT JOIN played p USING (trajectory)
WHERE f.step = ? ORDER BY f.trajectory_key
"""
SHOWN = 5
"""Uids that an error names."""


def account_for(folder: Path, step: int, word: str) -> Account:
    """The account of the trajectory that `word` means: its uid, or a part of it that no other of the step has.

    Raises:
        ConfigError: the folder holds no run, or the word means no trajectory or several.
        RecordError: the step is not recorded, or a file of it cannot be read.
    """
    run = Run(one_run(folder))
    run.require_step(step)
    run.index.refresh()
    problem = run.index.problems.get(step)
    if problem is not None:
        raise problem
    return account_of(run, step, _uid(run, step, word))


def _uid(run: Run, step: int, word: str) -> str:
    rows = run.index.rows(_TRAJECTORIES, [step])
    uids = [str(row["trajectory"]) for row in rows]
    if word in uids:
        return word
    found = (
        # `task-3:5` means the task `task-3` before `my-task-3`, and attempt 5, not 50.
        [uid for uid in uids if short_uid(uid) == word]
        or [uid for uid, row in zip(uids, rows, strict=True) if row["task_id"] == word]
        or [uid for uid in uids if uid.rpartition("/")[0].endswith(word)]
        or [uid for uid in uids if word in uid]
    )
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(found[:SHOWN]) + ", …" * (len(found) > SHOWN)
        raise ConfigError(
            "ambiguous-trajectory",
            f"{word!r} means {len(found)} trajectories of step {step}.",
            f"Name one of them: {names}",
        )
    names = ", ".join(uids[:SHOWN]) + ", …" * (len(uids) > SHOWN)
    raise ConfigError(
        "unknown-trajectory", f"No trajectory of step {step} is called {word!r}.", f"There are {len(uids)}: {names}"
    )


def short_uid(uid: str) -> str:
    """Return the task and the number of the rollout: ``task-3:5`` from ``12.0:task-3:5/0``."""
    return uid.rpartition("/")[0].partition(":")[2]
