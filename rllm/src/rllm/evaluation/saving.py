"""SaveDirectory: the directory of `--save`, owned by one process at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rllm.evaluation.members import MemberFile, read_lines
from rllm.evaluation.metadata import (
    FILE_NAME,
    Environment,
    Metadata,
    build_metadata,
    merged,
    read_metadata,
    write_metadata,
)
from rllm.evaluation.outcome import Outcome, build_outcome
from rllm.evaluation.rollouts import FinishedRollout, Job
from rllm.evaluation.saved_rollout import SavedRollout, rollout_from_line, rollout_to_line, task_digest
from rllm_core.data.tasks import task_ids
from rllm_core.errors import ConfigError, RllmError

LOCK = ".lock"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
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
    with locked(directory):
        now = build_metadata(jobs)
        before = read_metadata(directory)
        if before is None and any(entry.name != LOCK for entry in directory.iterdir()):
            raise ConfigError(
                "directory-in-use",
                f"{directory} contains files, but no evaluation.",
                "Choose another directory with --save.",
            )
        metadata = now if before is None else merged(before, now, jobs, directory)
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

    def done(self, job: Job) -> Sequence[Outcome]:
        return self._kept[job.name]

    def keep(self, job: Job, finished: FinishedRollout) -> None:
        if job.name not in self._files:
            file = MemberFile(self._directory / self._metadata.environments[job.name].file)
            self._stack.callback(file.close)
            self._files[job.name] = file
        self._files[job.name].append(rollout_to_line(finished))


def require_saved(directory: Path) -> Metadata:
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
