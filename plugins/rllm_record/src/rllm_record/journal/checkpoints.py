"""What the checkpoints of a run held, which outlives them: the digests of their files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rllm.runs.checkpoint import BACKEND, LATEST, MANIFEST
from rllm_core.errors import RllmError
from rllm_core.files import write_atomically

DIRECTORY = "journal"
"""Of the run folder."""
FILE = "checkpoints.jsonl"


@dataclass(frozen=True, kw_only=True)
class KeptCheckpoint:
    """A checkpoint of the run."""

    step: int
    """Finished steps."""
    taken: int
    """The round that training had taken up last."""
    sha256: Mapping[str, str]
    """Digests of what the backend wrote, by file: weights, optimiser, critic."""


def append_checkpoint(run: Path, step: int, taken: int) -> None:
    """Note the newest checkpoint of a run."""
    line = json.dumps({"step": step, "taken": taken, "sha256": latest_digests(run)})
    with (run / DIRECTORY / FILE).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def forget_checkpoints(run: Path, after: int) -> None:
    """Forget those of steps after this one: they are made again.

    Raises:
        RllmError: a line is not what was written.
    """
    path = run / DIRECTORY / FILE
    if path.is_file():
        kept = [asdict(checkpoint) for checkpoint in _noted(run) if checkpoint.step <= after]
        write_atomically(path, "".join(f"{json.dumps(checkpoint)}\n" for checkpoint in kept))


def noted_steps(run: Path) -> set[int]:
    """Finished steps at the checkpoints that are noted."""
    return {checkpoint.step for checkpoint in _noted(run)}


def latest_digests(run: Path) -> dict[str, str]:
    """Digests of what the backend wrote into the newest checkpoint of a run, by file."""
    manifest = json.loads((run / "checkpoints" / LATEST / MANIFEST).read_text(encoding="utf-8"))
    return {name: digest for name, digest in manifest["sha256"].items() if name.startswith(f"{BACKEND}/")}


def kept_checkpoints(run: Path) -> dict[int, KeptCheckpoint]:
    """The checkpoints of a run by finished steps. Of one that was made again, the last.

    Raises:
        RllmError: the run has no journal of all its rounds, or no checkpoint yet.
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
    # A last line without its end was cut off.
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    try:
        return [KeptCheckpoint(**json.loads(line)) for line in lines]
    except (ValueError, TypeError) as error:
        raise RllmError(
            "damaged-file",
            f"{path} holds a line that is not what was written: {error}.",
            "Copy the file back from a backup, or start a new run with --overwrite.",
        ) from error
