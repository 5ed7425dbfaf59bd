"""Run folders: which there are below the folders that somebody names."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rllm.runs.metrics_file import METRICS
from rllm.runs.run_directory import PLUGINS
from rllm_core.errors import ConfigError

DEPTH = 4
"""Folders below a named one in which runs are looked for: ``runs/project/experiment`` and one more on each side."""


@dataclass(frozen=True, kw_only=True)
class RunPlace:
    """Where a run is."""

    id: str
    """8 hexadecimal digits of its path: two runs of one name differ."""
    name: str
    """``project/experiment``: the last two folders of its path."""
    directory: Path
    """Absolute."""


def find_runs(directories: Sequence[Path]) -> list[RunPlace]:
    """The runs in and below `directories`, by path. Folders that do not exist yet hold none."""
    found = {
        place.id: place for directory in directories for place in map(_place, _runs_below(directory.absolute(), DEPTH))
    }
    return sorted(found.values(), key=lambda place: str(place.directory))


def one_run(directory: Path) -> RunPlace:
    """The run in `directory`.

    Raises:
        ConfigError: there is none, or there are several.
    """
    runs = find_runs([directory])
    if len(runs) == 1:
        return runs[0]
    if not runs:
        raise ConfigError(
            "run-not-found", f"{directory} holds no run.", "Name a run folder, such as runs/rllm-training/default."
        )
    names = ", ".join(str(place.directory) for place in runs[:5])
    raise ConfigError(
        "several-runs", f"{directory} holds {len(runs)} runs.", f"Name one of them: {names}{', …' * (len(runs) > 5)}"
    )


def is_run(directory: Path) -> bool:
    """Whether a run has left something in this very folder."""
    return any((directory / name).exists() for name in (PLUGINS, METRICS, "record"))


def _place(directory: Path) -> RunPlace:
    digest = hashlib.blake2b(os.fsencode(directory), digest_size=4).hexdigest()
    return RunPlace(id=digest, name="/".join(directory.parts[-2:]), directory=directory)


def _runs_below(directory: Path, depth: int) -> Iterator[Path]:
    if is_run(directory):
        yield directory
    elif depth:
        try:
            inner = sorted(entry.path for entry in os.scandir(directory) if entry.is_dir() and entry.name[0] != ".")
        except OSError:  # not there yet, or not ours to read
            return
        for path in inner:
            yield from _runs_below(Path(path), depth - 1)
