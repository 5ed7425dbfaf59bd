"""SaveDirectory: the directory of `--save`, owned by one process at a time, and its files of rollouts.

A line is an episode as runs store them, and a digest of its task. Every line is a separate gzip member and is only
appended (RFC 1952, section 2.2), so a crash cannot damage the file. ``zcat``, pandas and `gzip.open` read it as one
JSON Lines file.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rllm.evaluation.metadata import (
    FILE_NAME,
    Environment,
    Metadata,
    build_metadata,
    merge_metadata,
    read_metadata,
    write_metadata,
)
from rllm.evaluation.metrics import Outcome, build_outcome
from rllm.evaluation.plans import Job
from rllm.evaluation.rollouts import FinishedRollout
from rllm.rows.task_content import as_json_value, content_of, hash_of
from rllm_core.data.codec import episode_from_json, episode_to_json
from rllm_core.data.tasks import task_ids
from rllm_core.data.types import Episode, Task
from rllm_core.errors import ConfigError, RllmError

LOCK = ".lock"


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Lock a directory, and create it if it is missing. The lock always ends with the process.

    Raises:
        RllmError: a different process has locked it, or it cannot be written.
    """
    with ExitStack() as stack:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((directory / LOCK).open("a", encoding="utf-8"))
        except OSError as error:
            raise RllmError(
                "not-writable",
                f"{directory} cannot be written: {error.strerror}.",
                "Write a different directory after --save.",
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RllmError(
                "locked-directory",
                f"Another process is writing to {directory}.",
                "Wait until it ends, or write a different directory after --save.",
            ) from error
        yield


@contextmanager
def saving(directory: Path, jobs: Sequence[Job]) -> Iterator[SaveDirectory]:
    """Continue the evaluation in a directory, or begin one.

    Raises:
        ConfigError: the directory contains a different evaluation, or tasks have changed since.
        RllmError: a different process has locked the directory, or it is damaged.
    """
    with lock_directory(directory):
        now = build_metadata(jobs)
        before = read_metadata(directory)
        if before is None and any(entry.name != LOCK for entry in directory.iterdir()):
            raise ConfigError(
                "directory-in-use",
                f"{directory} contains files, but no evaluation.",
                "Choose another directory with --save.",
            )
        metadata = now if before is None else merge_metadata(before, now, jobs, directory)
        kept = {job.name: _read_earlier_outcomes(directory, metadata.environments[job.name], job) for job in jobs}
        (directory / "episodes").mkdir(exist_ok=True)
        write_metadata(directory, metadata)
        with ExitStack() as stack:
            yield SaveDirectory(directory, metadata, kept, stack)


class SaveDirectory:
    """Keeps rollouts as they end. Made by `saving`."""

    def __init__(self, directory: Path, metadata: Metadata, kept: dict[str, list[Outcome]], stack: ExitStack) -> None:
        self._directory = directory
        self._metadata = metadata
        self._kept = kept
        self._stack = stack
        self._files: dict[str, MemberFile] = {}

    def finished_outcomes(self, job: Job) -> Sequence[Outcome]:
        return self._kept[job.name]

    def keep(self, job: Job, finished: FinishedRollout) -> None:
        if job.name not in self._files:
            file = MemberFile(self._directory / self._metadata.environments[job.name].file)
            self._stack.callback(file.close)
            self._files[job.name] = file
        self._files[job.name].append(rollout_to_line(finished))


def require_evaluation(directory: Path) -> Metadata:
    """Return the metadata of the evaluation in a directory.

    Raises:
        ConfigError: the directory contains no evaluation.
    """
    metadata = read_metadata(directory)
    if metadata is None:
        raise ConfigError(
            "no-evaluation",
            f"{directory} contains no saved evaluation: there is no {FILE_NAME}.",
            "Create one with `rllm eval ENV --save DIRECTORY`.",
        )
    return metadata


def read_rollouts(directory: Path, environment: Environment) -> Iterator[SavedRollout]:
    """Yield all rollouts of an environment, in the order in which they ended.

    Raises:
        RllmError: the file is damaged, or a different version wrote it.
    """
    file = directory / environment.file
    if not file.exists():
        return
    for number, line in enumerate(read_lines(file), 1):
        try:
            yield rollout_from_line(line)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RllmError(
                "schema-too-new",
                f"{file}, line {number}: this version of rllm cannot read the rollout ({error}).",
                "Use the version of rllm that wrote it.",
            ) from error


def _read_earlier_outcomes(directory: Path, environment: Environment, job: Job) -> list[Outcome]:
    """Return the outcomes of earlier rollouts, if their tasks are unchanged."""
    place = {task_id: index for index, task_id in enumerate(task_ids(job.tasks))}
    digests: dict[str, str] = {}
    outcomes = []
    for saved in read_rollouts(directory, environment):
        task_id = saved.episode.task_id
        if task_id not in digests:
            digests[task_id] = task_digest(job.tasks[place[task_id]]) if task_id in place else "gone"
        if digests[task_id] != saved.task:
            raise ConfigError(
                "run-changed",
                f"Task {task_id!r} of {job.name} has changed since {directory} was saved.",
                f"Undo the change to the tasks, or save to a new directory: --save {directory}-2.",
            )
        outcomes.append(build_outcome(saved.episode))
    return outcomes


CHUNK = 1 << 20
GZIP = 31
"""`wbits` of zlib for a gzip member."""
SECONDS_BETWEEN_SYNCS = 1.0
"""Seconds of data that a power failure may lose. Killing the process loses no appended line."""


class MemberFile:
    """A file for lines. New lines come after the last whole line of an earlier process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        try:
            self._file.truncate(whole_length(path))
        except BaseException:
            self._file.close()
            raise
        self._synced = time.monotonic()

    def append(self, line: str) -> None:
        """Write a line without its end."""
        self._file.write(gzip.compress(line.encode() + b"\n", mtime=0))
        self._file.flush()
        if time.monotonic() - self._synced >= SECONDS_BETWEEN_SYNCS:
            self._sync()

    def close(self) -> None:
        """Wait until everything is on disk."""
        try:
            self._sync()
        finally:
            self._file.close()

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()


def read_lines(path: Path) -> Iterator[str]:
    """Yield all complete lines. An incomplete line at the end, from a killed process, is ignored.

    Raises:
        RllmError: the file is damaged.
    """
    with path.open("rb") as file:
        for line, _ in _members(file, path):
            yield line.decode()


def whole_length(path: Path) -> int:
    """Return the number of bytes up to the end of the last whole line."""
    with path.open("rb") as file:
        return max((end for _, end in _members(file, path)), default=0)


def _members(file: BinaryIO, path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield each complete member decompressed, with the offset of its end."""
    unpacker, parts, rest, end = zlib.decompressobj(GZIP), list[bytes](), b"", 0
    while data := rest or file.read(CHUNK):
        try:
            parts.append(unpacker.decompress(data))
        except zlib.error as error:
            raise RllmError(
                "damaged-file",
                f"{path} is damaged after its first {end} bytes: {error}.",
                f"`truncate --size {end} {path}` keeps what is whole.",
            ) from error
        rest = unpacker.unused_data
        if unpacker.eof:
            end = file.tell() - len(rest)
            yield b"".join(parts), end
            unpacker, parts = zlib.decompressobj(GZIP), []


@dataclass(frozen=True)
class SavedRollout:
    """An episode, and the digest of its task."""

    episode: Episode
    task: str
    """Digest of the task; see `task_digest`."""


def task_digest(task: Task) -> str:
    """Return a hash of a task's id, content and data source, as 16 hexadecimal digits."""
    return hash_of([task.id, content_of(task), task.data_source]).hex()


def rollout_to_line(finished: FinishedRollout) -> str:
    """Return a finished rollout as a line of JSON. Values without a JSON type, such as dates, become text."""
    line = episode_to_json(finished.episode) | {"task": task_digest(finished.task)}
    return json.dumps(line, ensure_ascii=False, default=as_json_value)


def rollout_from_line(line: str) -> SavedRollout:
    """Inverse of `rollout_to_line`.

    Raises:
        ValueError: another schema version wrote it.
    """
    data = json.loads(line)
    return SavedRollout(episode_from_json(data), data["task"])
