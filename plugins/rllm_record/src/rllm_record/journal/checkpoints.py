"""Digests of the files of a run's checkpoints. They are kept after the checkpoints are deleted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rllm.runs.checkpoint import BACKEND, LATEST, MANIFEST
from rllm_core.errors import RllmError
from rllm_core.files import write_atomically

DIRECTORY = "journal"
"""Name of the journal's folder in the run folder."""
FILE = "checkpoints.jsonl"


@dataclass(frozen=True, kw_only=True)
class KeptCheckpoint:
    """Entry of a checkpoint of the run."""

    step: int
    """Number of finished steps."""
    taken: int
    """Last task batch that was used for training."""
    sha256: Mapping[str, str]
    """File of the backend -> its digest. The files contain weights, optimizer and critic."""


def append_checkpoint(run: Path, step: int, taken: int) -> None:
    """Add an entry for the newest checkpoint of a run."""
    line = json.dumps({"step": step, "taken": taken, "sha256": latest_digests(run)})
    with (run / DIRECTORY / FILE).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def forget_checkpoints(run: Path, after: int) -> None:
    """Remove the entries of later steps, because the run repeats these steps.

    Raises:
        RllmError: a line is damaged.
    """
    path = run / DIRECTORY / FILE
    if path.is_file():
        kept = [asdict(checkpoint) for checkpoint in _noted(run) if checkpoint.step <= after]
        write_atomically(path, "".join(f"{json.dumps(checkpoint)}\n" for checkpoint in kept))


def noted_steps(run: Path) -> set[int]:
    """Return the number of finished steps of each entry."""
    return {checkpoint.step for checkpoint in _noted(run)}


def latest_digests(run: Path) -> dict[str, str]:
    """Return file -> digest of the backend's files in the newest checkpoint of a run."""
    manifest = json.loads((run / "checkpoints" / LATEST / MANIFEST).read_text(encoding="utf-8"))
    return {name: digest for name, digest in manifest["sha256"].items() if name.startswith(f"{BACKEND}/")}


def kept_checkpoints(run: Path) -> dict[int, KeptCheckpoint]:
    """Return the checkpoints of a run by number of finished steps. If a checkpoint was repeated, return the last.

    Raises:
        RllmError: the run has no journal of all its task batches, or no checkpoint yet.
    """
    noted = _noted(run)
    if not noted:
        raise RllmError(
            "no-journal",
            f"{run} has no journal of a whole run with a checkpoint.",
            "Train with `rllm.trainer.observers=[{name: journal, keep: run}]`.",
        )
    return {checkpoint.step: checkpoint for checkpoint in noted}


def _noted(run: Path) -> list[KeptCheckpoint]:
    path = run / DIRECTORY / FILE
    # Ignore the last line if it has no line end, because it is incomplete.
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    try:
        return [KeptCheckpoint(**json.loads(line)) for line in lines]
    except (ValueError, TypeError) as error:
        raise RllmError(
            "damaged-file",
            f"{path} contains a damaged line: {error}.",
            "Copy the file back from a backup, or start a new run with --overwrite.",
        ) from error
