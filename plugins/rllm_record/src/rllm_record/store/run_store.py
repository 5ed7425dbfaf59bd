"""`RunStore`: a run's URL while the run trains. A thread copies its files, and waits while the store is away."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path

from rllm_core.errors import ConfigError, RllmError
from rllm_core.notices import say
from rllm_record.run_files import WRITER
from rllm_record.store.copying import Copier
from rllm_record.store.fetching import fetch_to_resume, forget_names
from rllm_record.store.lease import Lease
from rllm_record.store.places import StorePlace, describe_failure, explain_failures, open_place

PAUSE = 1.0
"""Seconds between two looks for a new checkpoint."""
SECONDS_BETWEEN_COPIES = 15.0
LONGEST_PAUSE = 30.0
"""Maximum seconds between two tries while the store is away."""
SECONDS_AT_END = 600.0
"""Time for which the end of a run waits for a store that is away."""


class RunStore:
    """The copy of a run's directory in a store. Only this process writes to it, until `close`."""

    def __init__(self, place: StorePlace, directory: Path, lease: Lease) -> None:
        self.url = place.url
        self._directory, self._lease = directory, lease
        self._copier = Copier(place, directory, lease.confirm)
        self._ending = threading.Event()
        self._is_abandoned = False
        self._thread: threading.Thread | None = None
        self._problem: Exception | None = None
        """The reason why the last copy failed. None if it did not."""

    @classmethod
    def open(cls, url: str, directory: Path, *, resume: bool, overwrite: bool = False) -> RunStore:
        """Take the URL, and with `resume` make the directory equal to it, unless the directory is newer.

        Args:
            url: URL of the run.
            directory: the run's working directory, which this process has locked.
            resume: True if the run continues.
            overwrite: True if `begin` may replace a run in the store.

        Raises:
            ConfigError: the store has files at this URL, and neither `resume` nor `overwrite` is set.
            RllmError: a different process writes to the URL, or the store cannot be read or written.
        """
        place = open_place(url)
        lease = Lease.take(place, directory)
        store = cls(place, directory, lease)
        try:
            with explain_failures(url, "read"):
                if resume:
                    if not fetch_to_resume(place, directory, is_current=lease.is_current):
                        lease.claim()
                elif not overwrite:
                    _check_is_empty(place)
        except BaseException:
            lease.release()
            raise
        return store

    def begin(self, *, replaces: Collection[str] = ()) -> None:
        """Start to copy files.

        Args:
            replaces: names that an earlier run wrote, and that are removed from the store first.

        Raises:
            RllmError: the store cannot be written.
        """
        if replaces:
            with explain_failures(self.url, "written"):
                self._copier.replace(replaces)
        forget_names(self._directory)
        self._lease.claim(begins=True)
        self._start()

    def require(self) -> None:
        """Raise RllmError if a different process has taken over the URL."""
        self._lease.require()

    def close(self) -> None:
        """Copy the last files, and release the URL. A run that changed nothing copies nothing.

        Raises:
            RllmError: the store is away for too long, or has a different writer. If the run has failed, it prints the
                error instead, so that the run's own error is the one to see.
        """
        failure = sys.exception()
        if self._lease.is_current:
            self._start()
        try:
            self._finish()
            with explain_failures(self.url, "written"):
                self._lease.release()
        except RllmError as error:
            if failure is None:
                raise
            say(f"warning: {error.printed()}")

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rllm-store-copy", daemon=True)
            self._thread.start()

    def _finish(self) -> None:
        """Wait for the last copy. Raises the errors of `close`."""
        if self._thread is None:
            return
        self._ending.set()
        try:
            while self._thread.is_alive():
                self._thread.join(PAUSE)
        except KeyboardInterrupt:
            self._is_abandoned = True
            raise
        self.require()
        if self._problem is not None:
            raise RllmError(
                "service-unreachable",
                f"{self.url} lacks the run's last files: {describe_failure(self._problem)}. They are in "
                f"{self._directory}.",
                "Repeat the command with --resume on this machine to copy them.",
            )

    def _run(self) -> None:
        """Copy files until the run ends. At its end, copy everything."""
        last, pause, deadline = 0.0, PAUSE, None
        while not self._lease.is_lost and not self._is_abandoned:
            is_last = self._ending.is_set()
            if is_last and deadline is None:
                deadline, pause = time.monotonic() + SECONDS_AT_END, PAUSE
            is_due = is_last or self._problem is not None or time.monotonic() - last >= SECONDS_BETWEEN_COPIES
            if is_due or self._copier.has_new_checkpoint():
                self._copy(everything=is_last)
                last = time.monotonic()
                pause = PAUSE if self._problem is None else min(2 * pause, LONGEST_PAUSE)
                if is_last and (self._problem is None or deadline is None or last > deadline):
                    return
            if is_last:
                time.sleep(pause)
            else:
                self._ending.wait(pause)

    def _copy(self, *, everything: bool) -> None:
        before = self._problem
        try:
            self._lease.confirm()
            self._copier.copy(everything=everything)
            self._problem = None
        except Exception as error:  # noqa: BLE001  (each library of a store has its own exceptions)
            self._problem = error
        if self._lease.is_lost:
            return
        if before is None and self._problem is not None:
            say(
                f"warning: {self.url} cannot be written: {describe_failure(self._problem)}. The run continues, and "
                "copies its files later."
            )
        elif before is not None and self._problem is None:
            say(f"{self.url} can be written again, and has all files")


def _check_is_empty(place: StorePlace) -> None:
    if place.objects().keys() - {WRITER}:
        raise ConfigError(
            "run-exists",
            f"{place.url} contains files already.",
            "Continue its run with --resume, replace it with --overwrite (in Python resume=True, overwrite=True), or "
            "choose a different name with rllm.trainer.experiment_name=NAME.",
        )
