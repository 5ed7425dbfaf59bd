"""Runs on disk: find run directories, and read their metrics and status.

The program writes these files (`rllm.runs`). Tools read them, also while the run continues.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from rllm_core.errors import ConfigError, RllmError

CONFIG = "config.yaml"
PLUGINS = "plugins.json"
LENGTH = "length.json"
"""File with the total number of steps: ``{"total_steps": 240}``. With epochs it depends on the number of tasks."""
METRICS = "metrics.jsonl"
STATUS = "status.json"
LOCK = ".lock"
WRITER = ".writer.json"
"""File of a copy of a run in an object store: the machine that trains, and the last time it was seen."""
REPORT = "report.html"
CHECKPOINTS = "checkpoints"
LATEST_CHECKPOINT = "latest"
"""Link in the directory of checkpoints."""
MANIFEST = "manifest.json"
"""File of a checkpoint with the digests of its other files."""
BACKEND = "backend"
"""Directory of a checkpoint with the backend's files."""
SECONDS_TO_WRITE = 60.0
"""Seconds without a sign of the training machine after which its run counts as killed."""
Status = Literal["running", "finished", "stopped", "failed", "killed"]


def read_metrics(directory: Path) -> list[dict[str, Any]]:
    """Return the lines of the metrics in a run directory. Empty if there are none.

    An incomplete last line, from a crash, is ignored.

    Raises:
        RllmError: another line is not valid. The message has its number.
    """
    path = directory / METRICS
    if not path.exists():
        return []
    *whole, cut_off = path.read_bytes().split(b"\n")
    lines = [parse_line(line) for line in whole]
    if lines and lines[-1] is None and not cut_off:
        lines.pop()
    read = [line for line in lines if line is not None]
    if len(read) < len(lines):
        raise RllmError(
            "damaged-file",
            f"Line {lines.index(None) + 1} of {path} is not a valid line of metrics.",
            "Delete this line from the file. Its step is then missing in curves.",
        )
    return read


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return values by name, including ``step``. None if the line is not valid."""
    try:
        values = json.loads(line)
    except ValueError:  # also raised for text that is not UTF-8
        return None
    return values if isinstance(values, dict) and isinstance(values.get("step"), int) else None


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """State of a run, and its times in UTC, such as ``2026-11-29T09:41:33+00:00``."""

    status: Status
    """``killed``: the process wrote ``running`` and does not exist anymore. A copy of a running run also shows it."""
    started: str
    """Time of the run's first start."""
    ended: str | None = None
    """None if the run continues, or was killed."""
    reason: str = ""
    """Message of the error that ended a failed run."""


def read_status(directory: Path) -> RunStatus | None:
    """Return the status of the run in a directory. None if the run did not record a readable status."""
    written = read_written_status(directory)
    if written is None or written.status != "running":
        return written
    if _is_locked(directory / LOCK) or _is_written_elsewhere(directory / WRITER):
        return written
    return replace(written, status="killed")


def read_written_status(directory: Path) -> RunStatus | None:
    """Return the status as the run's process wrote it. None if it is not readable."""
    try:
        status = RunStatus(**json.loads((directory / STATUS).read_text(encoding="utf-8")))
        datetime.fromisoformat(status.started)
    except (OSError, ValueError, TypeError):
        return None
    is_valid = status.status in get_args(Status) and isinstance(status.ended or "", str)
    return status if is_valid and isinstance(status.reason, str) else None


def _is_locked(lock: Path) -> bool:
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _is_written_elsewhere(writer: Path) -> bool:
    """True if the directory is a copy of a run that trained on a different machine until a moment ago."""
    try:
        content = json.loads(writer.read_text(encoding="utf-8"))
        return bool(content["is_open"]) and time.time() - float(content["renewed"]) < SECONDS_TO_WRITE
    except (OSError, ValueError, TypeError, KeyError):
        return False


DEPTH = 4
"""Maximum depth of the search: ``runs/project/experiment``, and one more level on each side."""
RUNS = Path("runs")
"""Default directory of runs."""


@dataclass(frozen=True, kw_only=True)
class RunLocation:
    """The directory of a run."""

    id: str
    """Digest of the path, 8 hexadecimal digits. It is different for two runs with the same name."""
    name: str
    """Last two directories of the path: ``project/experiment``."""
    directory: Path
    """Absolute path."""


def find_runs(directories: Sequence[Path]) -> list[RunLocation]:
    """Return the runs in and below `directories`, sorted by path. A directory may be missing."""
    found = {
        place.id: place for directory in directories for place in map(_place, _runs_below(directory.absolute(), DEPTH))
    }
    return sorted(found.values(), key=lambda place: str(place.directory))


def one_run(directory: Path) -> RunLocation:
    """Return the run in `directory`.

    Raises:
        ConfigError: the directory contains no run, or several.
    """
    runs = find_runs([directory])
    if len(runs) == 1:
        return runs[0]
    if not runs:
        raise no_run_error(directory)
    names = ", ".join(str(place.directory) for place in runs[:5])
    raise ConfigError(
        "several-runs",
        f"{directory} contains {len(runs)} runs.",
        f"Use the path of one of them: {names}{', …' * (len(runs) > 5)}",
    )


def no_run_error(directory: Path) -> ConfigError:
    """Return the error of a directory without a run. Its hint is the path of the run with this name."""
    paths = [place.directory for place in find_runs([RUNS]) if place.directory.name == directory.name]
    hint = (
        f"Did you mean {short_path(paths[0])}?"
        if paths
        else "`rllm runs list` lists the runs below the directory `runs`. `rllm train guess` trains a first run."
    )
    return ConfigError("run-not-found", f"{directory} contains no run.", hint)


def short_path(directory: Path) -> Path:
    """Return a path relative to the current directory if it is below it, so that it can be typed."""
    here = Path.cwd()
    return directory.relative_to(here) if directory.is_relative_to(here) else directory


def is_run(directory: Path) -> bool:
    """True if this directory contains files of a run."""
    return any((directory / name).exists() for name in (PLUGINS, METRICS, "record"))


def _place(directory: Path) -> RunLocation:
    digest = hashlib.blake2b(os.fsencode(directory), digest_size=4).hexdigest()
    return RunLocation(id=digest, name="/".join(directory.parts[-2:]), directory=directory)


def _runs_below(directory: Path, depth: int) -> Iterator[Path]:
    if is_run(directory):
        yield directory
    elif depth:
        try:
            inner = sorted(entry.path for entry in os.scandir(directory) if entry.is_dir() and entry.name[0] != ".")
        except OSError:  # the directory does not exist yet, or cannot be read
            return
        for path in inner:
            yield from _runs_below(Path(path), depth - 1)
