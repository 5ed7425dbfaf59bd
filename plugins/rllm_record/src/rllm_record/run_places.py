"""Find run directories in given directories."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rllm_core.errors import ConfigError
from rllm_record.run_files import METRICS, PLUGINS

DEPTH = 4
"""Maximum depth of the search: ``runs/project/experiment``, and one more level on each side."""
RUNS = Path("runs")
"""Default directory of runs."""


@dataclass(frozen=True, kw_only=True)
class RunPlace:
    """The directory of a run."""

    id: str
    """Digest of the path, 8 hexadecimal digits. It is different for two runs with the same name."""
    name: str
    """Last two directories of the path: ``project/experiment``."""
    directory: Path
    """Absolute path."""


def find_runs(directories: Sequence[Path]) -> list[RunPlace]:
    """Return the runs in and below `directories`, sorted by path. A directory may be missing."""
    found = {
        place.id: place for directory in directories for place in map(_place, _runs_below(directory.absolute(), DEPTH))
    }
    return sorted(found.values(), key=lambda place: str(place.directory))


def one_run(directory: Path) -> RunPlace:
    """Return the run in `directory`.

    Raises:
        ConfigError: the directory contains no run, or several.
    """
    runs = find_runs([directory])
    if len(runs) == 1:
        return runs[0]
    if not runs:
        raise no_run(directory)
    names = ", ".join(str(place.directory) for place in runs[:5])
    raise ConfigError(
        "several-runs",
        f"{directory} contains {len(runs)} runs.",
        f"Use the path of one of them: {names}{', …' * (len(runs) > 5)}",
    )


def no_run(directory: Path) -> ConfigError:
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


def _place(directory: Path) -> RunPlace:
    digest = hashlib.blake2b(os.fsencode(directory), digest_size=4).hexdigest()
    return RunPlace(id=digest, name="/".join(directory.parts[-2:]), directory=directory)


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
