"""Formats of episodes: the modules that read and write files of other projects, by name.

Any package adds a format with an entry point in the group ``rllm.formats``. Its value is an `EpisodeFormat`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import count, islice
from pathlib import Path
from typing import Any

from rllm_core.errors import RllmError
from rllm_core.files import write_parts_atomically
from rllm_core.plugins.discovery import allowed_entry_points
from rllm_record.steps.rows import RecordedEpisode

GROUP = "rllm.formats"
FIRST_BYTES = 64 * 2**20
"""Maximum size of the first line of a file that is read to find its format."""
WRONG_CONTENT = (ValueError, KeyError, TypeError, AttributeError, IndexError, OSError)
"""Errors of a reader for a file that is damaged, or has a different version."""


class FormatError(RllmError):
    """No format recognizes a file, or it cannot be read or written."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class EpisodeFormat:
    """A format of files with episodes."""

    name: str
    title: str
    """A short name of a file's contents."""
    recognizes: Callable[[Path], bool]
    """Return True if an existing file or directory has this format. It reads at most the first object."""
    read: Callable[[Path], Iterable[RecordedEpisode]]
    """Return or yield the episodes of a file or directory, in their order."""
    write: Callable[[Path, Iterable[RecordedEpisode]], None] | None = None
    """Write episodes to a file, so that `read` returns equal ones. None: this format is only read."""


@cache
def episode_formats() -> dict[str, EpisodeFormat]:
    """Return all formats by name, our own first.

    Raises:
        FormatError: an entry point is not an `EpisodeFormat`.
    """
    found: dict[str, EpisodeFormat] = {}
    for candidate in allowed_entry_points(GROUP):
        made = candidate.load()
        if not isinstance(made, EpisodeFormat):
            raise FormatError(
                "not-a-plugin",
                f"Entry point {candidate.entry_point!r} of {candidate.distribution} is not an EpisodeFormat.",
                f"Uninstall {candidate.distribution}, or correct its entry point in the group {GROUP}.",
            )
        found.setdefault(made.name, made)
    return found


def format_of(path: Path) -> EpisodeFormat | None:
    """Return the format of an existing file or directory. None if no format recognizes it."""
    return next((each for each in episode_formats().values() if each.recognizes(path)), None)


def read_file(path: Path) -> list[RecordedEpisode]:
    """Return all episodes of a file or directory of any format. Raises the errors of `stream_file`."""
    return list(stream_file(path))


def stream_file(path: Path) -> Iterator[RecordedEpisode]:
    """Yield the episodes of a file or directory of any format. Lines of a file are read when they are needed.

    Raises:
        FormatError: no format recognizes it, or it cannot be read.
    """
    found = format_of(path)
    if found is None and path.suffix == ".json" and path.is_file() and path.stat().st_size > FIRST_BYTES:
        raise FormatError(
            "wrong-file-type",
            f"{path} has {path.stat().st_size / 2**20:.0f} MiB. A .json file may have {FIRST_BYTES // 2**20} MiB.",
            "Split its episodes into several files, or write them to a .jsonl file, one per line.",
        )
    if found is None:
        titles = ", ".join(f"{each.title} ({each.name})" for each in episode_formats().values())
        raise FormatError(
            "unknown-file-type", f"No format of episodes recognizes {path}.", f"The formats are: {titles}."
        )
    try:
        yield from found.read(path)
    except WRONG_CONTENT as error:
        raise FormatError(
            "file-unreadable",
            f"{path} cannot be read as {found.name}: {type(error).__name__}: {error}.",
            "Write the file again, or use the package version that docs/how-to/interchange.md lists.",
        ) from error


def write_file(path: Path, episodes: Iterable[RecordedEpisode], name: str) -> int:
    """Write episodes to a file of the format `name`, and return their number.

    For a ``.jsonl`` file, only one episode is in memory at a time.

    Raises:
        FormatError: the format is unknown or only read, or the file cannot be written.
    """
    found = episode_formats().get(name)
    if found is None or found.write is None:
        writable = ", ".join(each.name for each in episode_formats().values() if each.write)
        what = "only read" if found else "unknown"
        raise FormatError("unknown-choice", f"Format {name!r} is {what}.", f"Choose from --format {writable}.")
    numbers = count()
    try:
        found.write(path, (episode for episode, _ in zip(episodes, numbers, strict=False)))
    except OSError as error:
        raise FormatError(
            "not-writable", f"{path} cannot be written: {error.strerror}.", "Choose a different file."
        ) from error
    return next(numbers)


def first_object(path: Path) -> Mapping[str, Any]:
    """Return the object of a ``.json`` file, or of the first line of a ``.jsonl`` file. Empty for all other files."""
    try:
        if path.suffix == ".json" and path.stat().st_size <= FIRST_BYTES:
            found = json.loads(path.read_bytes())
        elif path.suffix == ".jsonl" or path.name.endswith(".jsonl.gz"):
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                found = json.loads(file.readline(FIRST_BYTES))
        else:
            return {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_objects(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the object of a ``.json`` file, or the objects of a ``.jsonl`` file.

    Raises:
        ValueError: a line is not JSON. The message has its number.
    """
    if path.suffix == ".json":
        yield json.loads(path.read_bytes())
        return
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number} is not JSON: {error}") from error


def write_objects(path: Path, objects: Iterable[Mapping[str, Any]]) -> None:
    """Write one object to a ``.json`` file, or a line for each to a ``.jsonl`` file. A line is written when it is made.

    Raises:
        FormatError: the name has a different ending, or a ``.json`` file would have several objects.
    """
    first = list(islice(objects, 2)) if path.suffix == ".json" else []
    if path.suffix not in (".json", ".jsonl") or (path.suffix == ".json" and len(first) != 1):
        raise FormatError(
            "wrong-file-type",
            f"{path} does not end in .jsonl, and a .json file has exactly one episode.",
            f"Use a file that ends in .jsonl: {path.with_suffix('.jsonl')}.",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    indent = 1 if path.suffix == ".json" else None
    write_parts_atomically(path, (f"{json.dumps(each, indent=indent)}\n" for each in first or objects))
