"""What RUN, STEP and UID on the command line stand for."""

from __future__ import annotations

from pathlib import Path

from rllm_core.errors import ConfigError
from rllm_record.run_places import one_run
from rllm_view.reading.account import Account, account_of
from rllm_view.reading.run import Run

SHOWN = 5
"""Uids that an error names."""


def account_for(folder: Path, step: int, word: str) -> Account:
    """The account of the trajectory that `word` means: its uid, or a part of it that no other of the step has.

    Raises:
        ConfigError: the folder holds no run, or the word means no trajectory or several.
        RecordError: the step is not recorded, or a file cannot be read.
    """
    run = Run(one_run(folder))
    run.require_step(step)
    run.index.refresh()
    return account_of(run, step, _uid(run, step, word))


def _uid(run: Run, step: int, word: str) -> str:
    rows = run.index.rows("SELECT trajectory FROM fates WHERE step = ? ORDER BY trajectory", [step])
    uids = [str(row["trajectory"]) for row in rows]
    if word in uids:
        return word
    # `task-3:5` means attempt 5, not 50.
    found = [uid for uid in uids if uid.rpartition("/")[0].endswith(word)] or [uid for uid in uids if word in uid]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(found[:SHOWN]) + ", …" * (len(found) > SHOWN)
        raise ConfigError(f"{word!r} means {len(found)} trajectories of step {step}.", f"Name one of them: {names}")
    names = ", ".join(uids[:SHOWN]) + ", …" * (len(uids) > SHOWN)
    raise ConfigError(f"No trajectory of step {step} is called {word!r}.", f"There are {len(uids)}: {names}")
