"""Formats of episodes by name: each reads files of a program, and some write them.

Our formats are the modules of `programs`. Any package adds a format with an entry point in the group ``rllm.formats``.
"""

from __future__ import annotations

import pkgutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from zipfile import BadZipFile

from rllm_core.plugins.discovery import allowed_entry_points
from rllm_record.interchange import programs
from rllm_record.interchange.json_files import FormatError
from rllm_record.steps.rows import RecordedEpisode

GROUP = "rllm.formats"
WRONG_CONTENT = (ValueError, KeyError, TypeError, AttributeError, IndexError, OSError, EOFError, BadZipFile, zlib.error)
"""Errors of a reader for a file that is damaged, or has a different version."""


@dataclass(frozen=True, kw_only=True)
class EpisodeFormat:
    """A format of files with episodes."""

    name: str
    title: str
    """A short name of a file's contents."""
    recognizes: Callable[[Path], bool]
    """Return True if an existing file or directory has this format. It reads only the start of a file."""
    read: Callable[[Path], Iterator[RecordedEpisode]]
    """Yield the episodes of a file or directory, in their order."""
    write: Callable[[Path, Iterable[RecordedEpisode]], None] | None = None
    """Write episodes to a file, so that `read` returns equal ones. None: this format is only read."""


@cache
def episode_formats() -> dict[str, EpisodeFormat]:
    """Return all formats by name, our own first.

    Raises:
        FormatError: an entry point is not an `EpisodeFormat`.
    """
    modules = [import_module(f"{programs.__name__}.{each.name}") for each in pkgutil.iter_modules(programs.__path__)]
    found: dict[str, EpisodeFormat] = {module.FORMAT.name: module.FORMAT for module in modules}
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
    """Yield the episodes of a file or directory of any format. Each is read when it is needed.

    Raises:
        FormatError: no format recognizes it, or it cannot be read.
    """
    found = format_of(path)
    if found is None:
        titles = ", ".join(f"{each.title} ({each.name})" for each in episode_formats().values())
        empty = ", because it is empty" if path.is_file() and not path.stat().st_size else ""
        raise FormatError(
            "unknown-file-type", f"No format of episodes recognizes {path}{empty}.", f"The formats are: {titles}."
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
