"""The run directory `<output_dir>/<project>/<experiment>/`, and its metrics. Only one process at a time may use it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from rllm.config.saved_config import FILE_NAME as CONFIG, save_config
from rllm.runs.plugin_check import describe_used_plugins
from rllm_core.contracts.chosen import Registered
from rllm_core.errors import ConfigError, RllmError
from rllm_core.files import write_atomically
from rllm_core.schema.run_sections import TrainerSection
from rllm_record.pending import PENDING
from rllm_record.run_files import LENGTH, LOCK, METRICS, PLUGINS, REPORT, STATUS, read_metrics
from rllm_record.store.fetching import fetch_names
from rllm_record.store.places import is_url, working_directory
from rllm_record.store.run_store import RunStore

SECONDS_TO_READ_STATUS = 0.05
"""Maximum time for which a program locks the file to see if the run continues."""
TRACKED = ("mlflow.db", "mlflow_run_id", "tensorboard", "trackio_run_id", "wandb", "wandb_run_id")
"""Names that the core's trackers write in the run directory."""
DIRECTORIES = ("checkpoints", "episodes", "record", "journal", "gateway")
WRITTEN = (CONFIG, LENGTH, STATUS, METRICS, PENDING, *DIRECTORIES, REPORT, *TRACKED, PLUGINS)
"""All files of a run. `plugins.json` identifies a run's directory, so it is removed last."""


def run_directory_path(trainer: TrainerSection) -> Path:
    """Return the directory of a run with these settings. For a URL it is the local working directory."""
    if is_url(trainer.output_dir):
        return working_directory(_run_url(trainer))
    return Path(trainer.output_dir).expanduser() / trainer.project_name / trainer.experiment_name


def find_stored_runs(trainer: TrainerSection) -> None:
    """If `output_dir` is a URL, copy the names and configs of the project's runs to this machine.

    Raises:
        RllmError: the store cannot be read.
    """
    if is_url(trainer.output_dir):
        fetch_names(f"{trainer.output_dir.rstrip('/')}/{trainer.project_name}")


def _run_url(trainer: TrainerSection) -> str:
    return f"{trainer.output_dir.rstrip('/')}/{trainer.project_name}/{trainer.experiment_name}"


def _unwritable(path: Path, reason: str) -> RllmError:
    return RllmError(
        "not-writable",
        f"The run directory {path} cannot be written: {reason}.",
        "Choose another with rllm.trainer.output_dir=DIRECTORY.",
    )


def _lock_alone(lock: TextIO) -> None:
    """Lock the file for this process. Raise BlockingIOError if a different process is training."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(SECONDS_TO_READ_STATUS)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


class RunDirectory:
    """A run's directory, locked until `close`. The lock always ends with the process."""

    def __init__(self, path: Path, lock: TextIO) -> None:
        self.path = path
        self._lock = lock
        self._store: RunStore | None = None
        self._replaces = self._overwrites = False
        self._metrics: TextIO | None = None

    @classmethod
    def open(cls, trainer: TrainerSection, *, resume: bool = False, overwrite: bool = False) -> RunDirectory:
        """Create the directory, or open an existing one.

        Raises:
            ConfigError: the directory contains a run, and neither `resume` nor `overwrite` is set.
            RllmError: the directory cannot be written, or another process is using it.
        """
        path = run_directory_path(trainer)
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = (path / LOCK).open("a", encoding="utf-8")
        except OSError as error:
            raise _unwritable(path, str(error.strerror)) from error
        try:
            _lock_alone(lock)
        except OSError as error:
            lock.close()
            raise RllmError(
                "locked-directory",
                f"Another process is training in {path}, or another trainer of this program has it open.",
                "Wait for it, delete that trainer (`del trainer`), or choose another name with "
                "rllm.trainer.experiment_name=NAME.",
            ) from error
        directory = cls(path, lock)
        try:
            cls.check(trainer, resume=resume, overwrite=overwrite)
            if is_url(trainer.output_dir):
                directory._store = RunStore.open(_run_url(trainer), path, resume=resume, overwrite=overwrite)
        except BaseException:
            directory.close()
            raise
        directory._replaces = directory.holds_a_run() and not resume
        directory._overwrites = overwrite and not resume
        return directory

    @staticmethod
    def check(trainer: TrainerSection, *, resume: bool, overwrite: bool) -> None:
        """Check the directory of a run without writing to it.

        Raises:
            ConfigError: the directory contains a run, and neither `resume` nor `overwrite` is set.
            RllmError: the directory cannot be written.
        """
        path = run_directory_path(trainer)
        there = next(each for each in (path, *path.absolute().parents) if each.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            reason = "may not be written" if there.is_dir() else "is a file"
            raise _unwritable(path, f"{there} {reason}")
        if (path / PLUGINS).exists() and not (resume or overwrite):
            raise ConfigError(
                "run-exists",
                f"{path} contains a run already.",
                "Continue it with --resume, replace it with --overwrite (in Python resume=True, overwrite=True), or "
                "choose another name with rllm.trainer.experiment_name=NAME.",
            )

    @property
    def url(self) -> str | None:
        """URL of the directory's copy in a store. None if it has none."""
        return None if self._store is None else self._store.url

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def episodes(self) -> Path:
        return self.path / "episodes"

    def holds_a_run(self) -> bool:
        """True if a run has started in this directory."""
        return (self.path / PLUGINS).exists()

    @property
    def replaces(self) -> bool:
        """True if the directory has an earlier run, which the first step removes."""
        return self._replaces

    def begin(self, config: Mapping[str, Any], registered: Iterable[Registered[Any]], total_steps: int) -> None:
        """Remove the run to be replaced, if any, and write the run's configuration, plugins and number of steps.

        Call it just before the first step, so that a run that cannot start changes nothing.

        Args:
            config: the whole configuration.
            registered: the plugins in use.
            total_steps: number of steps of the whole run, including earlier starts.
        """
        replaces, self._replaces = self._replaces, False
        if replaces:
            self._remove_run()
        save_config(config, self.path)
        write_atomically(self.path / LENGTH, json.dumps({"total_steps": total_steps}) + "\n")
        write_atomically(self.path / PLUGINS, json.dumps(describe_used_plugins(registered), indent=1) + "\n")
        if self._store is not None:
            self._store.begin(replaces=WRITTEN if self._overwrites else ())
            self._overwrites = False

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """Append one line to `metrics.jsonl`. Numbers JSON does not know become null."""
        if self._store is not None:
            self._store.require()
        plain = {name: float(value) if math.isfinite(value) else None for name, value in sorted(metrics.items())}
        line = json.dumps({"step": global_step} | plain | {"step": global_step}) + "\n"
        try:
            if self._metrics is None:
                self._metrics = (self.path / METRICS).open("a", encoding="utf-8")
            self._metrics.write(line)
            self._metrics.flush()
        except OSError as error:
            self._close_metrics()
            raise RllmError(
                "not-writable",
                f"The metrics of step {global_step} could not be written to {self.path / METRICS}: {error.strerror}.",
                "Free disk space, then continue from the newest checkpoint with --resume (in Python resume=True).",
            ) from error

    def sync(self) -> None:
        """Wait until all metrics are on disk: a checkpoint must not be newer than they are."""
        if self._metrics is not None:
            os.fsync(self._metrics.fileno())

    def forget_after(self, finished_steps: int) -> None:
        """Remove metrics of steps that a resumed run repeats, and an incomplete last line from a crash.

        A run that starts from the beginning also repeats the validation before the first step.
        """
        path = self.path / METRICS
        if not path.exists():
            return
        kept = [line for line in read_metrics(self.path) if finished_steps and line["step"] < finished_steps]
        write_atomically(path, "".join(json.dumps(line) + "\n" for line in kept))

    def history(self) -> list[dict[str, Any]]:
        """Return all lines of `metrics.jsonl`."""
        return read_metrics(self.path)

    def close(self) -> None:
        """Release the directory, and remove it if no run began and it has no other files.

        Raises:
            RllmError: the run's store is away for too long, so that the copy lacks the last files.
        """
        self._close_metrics()
        store, self._store = self._store, None
        try:
            if store is not None:
                store.close()
        finally:
            self._release()

    def _release(self) -> None:
        if not (self._lock.closed or self.holds_a_run()):
            with contextlib.suppress(OSError):
                (self.path / LOCK).unlink()
                self.path.rmdir()
        self._lock.close()

    def _close_metrics(self) -> None:
        # A failed write was reported already. Closing the file would only fail again.
        with contextlib.suppress(OSError):
            if self._metrics is not None:
                self._metrics.close()
        self._metrics = None

    def _remove_run(self) -> None:
        """Remove the files that a run writes, and no other files in the directory."""
        for name in WRITTEN:
            entry = self.path / name
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)
