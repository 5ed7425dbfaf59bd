"""Copy runs from a store: `fetch` for a run that is resumed, and `RunPath` for commands that read."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import click

from rllm_core.errors import ConfigError
from rllm_core.notices import say
from rllm_record.run_files import CHECKPOINTS, CONFIG, LOCK, MANIFEST, PLUGINS, WRITER
from rllm_record.store.copying import (
    Stamp,
    checkpoint_of,
    is_in_whole_checkpoint,
    link_latest,
    local_files,
    read_stamps,
    remove_local,
    write_stamps,
)
from rllm_record.store.lease import local_writer, read_writer
from rllm_record.store.places import (
    StorePlace,
    copies_directory,
    explain_failures,
    is_url,
    open_place,
    reading_directory,
    working_directory,
)

Content = Literal["all", "latest checkpoint", "no checkpoints"]
"""Objects to fetch. The journal is only needed to resume or to repeat a run, so only `all` includes it."""
SECONDS_BETWEEN_FETCHES = 10.0
NAMES = ".names"
"""Hidden directory with a working directory's own config and plugins, while it has the store's files."""
NEW = ".new"
"""Hidden directory of objects until they are copied completely."""
READERS = ".readers"
"""Hidden file that processes lock while they update a copy."""
ROUNDS = 3
"""Number of times that the objects are listed. A running run removes objects."""


def fetch(place: StorePlace, directory: Path, content: Content = "all") -> None:
    """Make a directory equal to a place. Files that have not changed are not read again.

    Files of the place that are not in `content` are neither fetched nor removed, because a different process may read
    them.

    Raises the errors of the store.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for left in reversed(range(ROUNDS)):
        try:
            objects = place.objects()
            _fetch_objects(place, directory, _choose(objects, content), _choose(objects, "all"))
            break
        except FileNotFoundError:
            if not left:
                raise
    link_latest(directory)


def fetch_to_resume(place: StorePlace, directory: Path, *, is_current: bool) -> bool:
    """Make a working directory equal to a place, unless its files are newer. Earlier files move to a new directory.

    Args:
        is_current: True if the directory trained last.

    Returns:
        False if the place contains no run and the directory contains one, which stays.

    Raises the errors of the store.
    """
    _restore_names(directory)
    objects, local = _choose(place.objects(), "all"), local_files(directory)
    has_run = _has_more_than_names(directory)
    if has_run and PLUGINS not in objects:
        return False
    stored, whole = _newest_checkpoint(objects), _newest_checkpoint(local)
    if is_current and (whole or not stored):
        return True
    known = read_stamps(directory)
    same = {name for name in local if name in known and known[name].equals(local[name])}
    if has_run and any(name not in same or known[name].version != _version(objects.get(name, {})) for name in local):
        aside = _move_aside(directory)
        newer = f", also {whole}, which is newer than {place.url}" if whole and (not stored or whole > stored) else ""
        say(f"{directory} is different from {place.url}: its earlier files are in {aside} now{newer}")
    fetch(place, directory)
    return True


def _move_aside(directory: Path) -> Path:
    """Move a working directory's files to a new directory next to it. The lock stays."""
    number = 1
    while (aside := directory.with_name(f"{directory.name}.before.{number}")).exists():
        number += 1
    aside.mkdir()
    for entry in list(directory.iterdir()):
        if entry.name != LOCK:
            entry.rename(aside / entry.name)
    return aside


def _has_more_than_names(directory: Path) -> bool:
    """True if a directory has more files of a run than `fetch_names` writes."""
    return bool(local_files(directory).keys() - {CONFIG, PLUGINS})


def _newest_checkpoint(names: Iterable[str]) -> str | None:
    whole = (name for name in names if name.endswith(f"/{MANIFEST}"))
    return max((found for name in whole if (found := checkpoint_of(name))), default=None)


def _choose(objects: Mapping[str, Mapping[str, Any]], content: Content) -> dict[str, Mapping[str, Any]]:
    def is_wanted(name: str) -> bool:
        if name.rpartition("/")[2] == WRITER or not is_in_whole_checkpoint(name, objects):
            return content != "all" and checkpoint_of(name) is None
        if any(part[:1] == "." for part in name.split("/")):
            return False
        directories = name.split("/")[:-1]
        if content == "all":
            return True
        if content == "latest checkpoint" and checkpoint_of(name):
            return checkpoint_of(name) == newest
        return CHECKPOINTS not in directories and "journal" not in directories

    newest = _newest_checkpoint(objects)
    return {name: info for name, info in objects.items() if is_wanted(name)}


def _fetch_objects(
    place: StorePlace,
    directory: Path,
    objects: Mapping[str, Mapping[str, Any]],
    others: Mapping[str, Mapping[str, Any]],
) -> None:
    """Fetch `objects`, and remove files that are neither in `objects` nor in `others`."""
    known, local = read_stamps(directory), local_files(directory)
    new = [
        name
        for name, info in objects.items()
        if name not in known or known[name].version != _version(info) or not known[name].equals(local.get(name))
    ]
    stay = {name: known[name] for name in known if name in others and name not in objects}
    remove_local(directory, [name for name in local if name not in objects and name not in others])
    shutil.rmtree(directory / NEW, ignore_errors=True)
    if new:
        paths = [directory / NEW / name for name in new]
        place.files.get([place.object_path(name) for name in new], [str(path) for path in paths])
        for name, path in zip(new, paths, strict=True):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            path.replace(directory / name)
        shutil.rmtree(directory / NEW)
    now = local_files(directory)
    versions = {name: _version(info) for name, info in objects.items()}
    stamps = {name: Stamp(now[name].size, now[name].changed_ns, versions[name]) for name in versions.keys() & now}
    write_stamps(directory, stay | stamps)


def _version(info: Mapping[str, Any]) -> str:
    """Return a text that changes with the object."""
    parts = (info.get(key) for key in ("size", "ETag", "etag", "LastModified", "updated", "created", "mtime"))
    return " ".join(str(part) for part in parts if part is not None)


def fetch_names(url: str) -> None:
    """Write the config and the plugins of each run of a project to the run's working directory.

    So the program finds the names and the configs of all runs in the store. If a directory has files of an earlier
    state or of a different run, its own config and plugins are moved to `NAMES`.

    Args:
        url: URL of the project's directory.

    Raises:
        RllmError: the store cannot be read.
    """
    with explain_failures(url, "read"):
        place, project = open_place(url), working_directory(url)
        names = _names_of_runs(place)
        paths = [place.object_path(f"{name}/{file}") for name in names for file in (WRITER, PLUGINS, CONFIG)]
        contents = place.files.cat(paths, on_error="return") if paths else {}
        failures = [each for each in contents.values() if isinstance(each, Exception)]
        for failure in failures:
            if not isinstance(failure, FileNotFoundError):
                raise failure
        contents = {path.strip("/"): each for path, each in contents.items() if each not in failures}
    for name in names:
        found = [contents.get(place.object_path(f"{name}/{file}").strip("/")) for file in (WRITER, PLUGINS, CONFIG)]
        writer, plugins, config = read_writer(found[0]), found[1], found[2]
        directory = project / name
        own = local_writer(directory)
        is_own = own is not None and writer is not None and own.writer == writer.writer
        if plugins is None or config is None or is_own:
            continue
        directory.mkdir(parents=True, exist_ok=True)
        _keep_names(directory)
        (directory / CONFIG).write_bytes(config)
        (directory / PLUGINS).write_bytes(plugins)
        if writer is not None and writer.begun:
            os.utime(directory / PLUGINS, (writer.begun, writer.begun))
    for known in project.glob(f"*/{PLUGINS}"):
        if known.parent.name not in names and not _has_more_than_names(known.parent):
            known.unlink()  # the run was removed from the store


def _keep_names(directory: Path) -> None:
    """Move a directory's own config and plugins to `NAMES`, if it has other files of a run too."""
    kept = directory / NAMES
    if not kept.exists() and _has_more_than_names(directory):
        kept.mkdir()
        for path in (directory / CONFIG, directory / PLUGINS):
            if path.exists():
                path.rename(kept / path.name)


def _restore_names(directory: Path) -> None:
    """Replace the config and plugins of the store by the directory's own from `NAMES`."""
    if (directory / NAMES).exists():
        for path in (directory / NAMES).iterdir():
            path.replace(directory / path.name)
        forget_names(directory)


def forget_names(directory: Path) -> None:
    """Remove a directory's earlier config and plugins, because a new run begins in it."""
    shutil.rmtree(directory / NAMES, ignore_errors=True)


def _names_of_runs(place: StorePlace) -> list[str]:
    place.files.invalidate_cache()
    try:
        entries = place.files.ls(place.path, detail=True)
    except FileNotFoundError:
        return []
    return [entry["name"].rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == "directory"]


def local_copy(url: str, content: Content, *, follows: bool = False) -> Path:
    """Return a local directory with the files of a URL, to read them.

    It is the working directory if a run of this machine was the last to write to the URL, and a copy otherwise.

    Args:
        url: URL of a run, of a directory of runs, or of a checkpoint.
        content: the files to copy.
        follows: True to update the copy in a thread until the process ends.

    Raises:
        RllmError: the store cannot be read.
        ConfigError: it has no objects at this URL.
    """
    with explain_failures(url, "read"):
        place, working, copy = open_place(url), working_directory(url), reading_directory(url)
        own = local_writer(working)
        if own is not None:
            stored = None if _is_locked(working) else read_writer(place.read(WRITER))
            if stored is None or stored.writer == own.writer:
                return working
        if not place.objects():
            raise ConfigError("run-not-found", f"{url} contains no files.", "Use the URL of a run, or of a project.")
        _update_copy(place, copy, content)
    if follows:
        threading.Thread(target=_follow, args=(place, copy, content), name="rllm-store-follow", daemon=True).start()
    return copy


def _update_copy(place: StorePlace, directory: Path, content: Content) -> None:
    """Fetch a copy. Processes that update it, or a directory above or below it, wait for each other."""
    with ExitStack() as stack:
        for above in reversed((directory, *directory.parents)):
            if above.is_relative_to(copies_directory()):
                above.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context((above / READERS).open("w"))
                fcntl.flock(file, fcntl.LOCK_EX if above == directory else fcntl.LOCK_SH)
        fetch(place, directory, content)


def _follow(place: StorePlace, directory: Path, content: Content) -> None:
    pause = threading.Event()
    is_away = False
    while not pause.wait(SECONDS_BETWEEN_FETCHES):
        try:
            _update_copy(place, directory, content)
            is_away = False
        except Exception as error:  # noqa: BLE001  (each library of a store has its own exceptions)
            if not is_away:
                say(f"warning: {place.url} cannot be read, so the pages show an earlier state: {error}")
            is_away = True


def _is_locked(directory: Path) -> bool:
    """True if a process of this machine trains in a directory."""
    try:
        with (directory / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


class RunPath(click.Path):
    """The path of a run, or its URL, whose files are copied to this machine first."""

    def __init__(self, content: Content = "no checkpoints", *, follows: bool = False, **options: Any) -> None:
        super().__init__(path_type=Path, **options)
        self._content, self._follows = content, follows

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the local path."""
        if isinstance(value, str) and is_url(value):
            value = str(local_copy(value, self._content, follows=self._follows))
        return super().convert(value, param, ctx)
