"""`Lease`: only one process writes to a URL. The object `.writer.json` identifies the process, which renews it.

No clock of two machines is compared: a new process watches the object, and takes it over if no process renews it.
"""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rllm_core.errors import RllmError
from rllm_core.files import write_atomically
from rllm_core.notices import say
from rllm_record.run_files import WRITER
from rllm_record.store.places import StorePlace, explain_failures

SECONDS_BETWEEN_RENEWALS = 10.0
SECONDS_WITHOUT_A_READ = 1.0
"""Time after a read of the object in which the process may write without a new read."""
SECONDS_TO_WATCH = 45.0
"""Time without a renewal after which a process counts as ended."""


@dataclass(frozen=True, kw_only=True)
class Writer:
    """The content of the object: the working directory whose process writes."""

    writer: str
    """Id of the working directory that trained last. It also has the id if its files are not older."""
    holder: str = ""
    """Id of the working directory whose process has the URL."""
    host: str = ""
    is_open: bool = False
    """True until the process ends in order."""
    renewed: float = 0.0
    """Seconds since 1970, by the clock of the writing machine. Readers show its run as running while it is recent."""
    begun: float = 0.0
    """Start of the run's latest start, in seconds since 1970."""


def read_writer(content: bytes | None) -> Writer | None:
    """Return the writer in a file's content. None if it is missing or damaged."""
    try:
        return None if content is None else Writer(**json.loads(content))
    except (ValueError, TypeError):
        return None


def local_writer(directory: Path) -> Writer | None:
    """Return the writer that a working directory belongs to. None if its files may be older than the store's."""
    try:
        return read_writer((directory / WRITER).read_bytes())
    except OSError:
        return None


class Lease:
    """The right to write to a URL, until `release`."""

    def __init__(self, place: StorePlace, directory: Path, writer: Writer, before: Writer | None) -> None:
        self._place, self._directory = place, directory
        self._writer, self._before = writer, before
        self._ended = threading.Event()
        self._confirmed = time.monotonic()
        self.is_lost = False
        """True if a different process has taken over the URL."""
        self.is_current = before is not None and before.writer == writer.holder
        """True if the working directory's files are not older than the store's."""
        self._thread = threading.Thread(target=self._renew, name="rllm-store-lease", daemon=True)

    @classmethod
    def take(cls, place: StorePlace, directory: Path) -> Lease:
        """Take the URL for this process.

        Raises:
            RllmError: a different process writes to it, or the store cannot be written.
        """
        with explain_failures(place.url, "written"):
            before, own = read_writer(place.read(WRITER)), local_writer(directory)
            is_own = before is not None and own is not None and before.writer == own.writer
            # The lock of the working directory shows that no other process of this machine uses it.
            if before is not None and before.is_open and not is_own:
                _watch(place, before)
            writer = Writer(
                writer="" if before is None else before.writer,
                holder=own.writer if own is not None and is_own else uuid.uuid4().hex,
                host=socket.gethostname(),
                is_open=True,
                begun=0.0 if before is None else before.begun,
            )
            lease = cls(place, directory, writer, before)
            lease._write()
        lease._thread.start()
        return lease

    def claim(self, *, begins: bool = False) -> None:
        """Note that the working directory's files are not older than the store's now.

        Args:
            begins: True if a start of the run begins now.

        Raises:
            RllmError: the store cannot be written.
        """
        begun = time.time() if begins else self._writer.begun
        self._writer = replace(self._writer, writer=self._writer.holder, begun=begun)
        write_atomically(self._directory / WRITER, json.dumps({"writer": self._writer.writer}) + "\n")
        self.is_current = True
        with explain_failures(self._place.url, "written"):
            self._write()

    def require(self) -> None:
        """Raise RllmError if a different process has taken over the URL."""
        if self.is_lost:
            raise RllmError(
                "locked-directory",
                f"A different process writes to {self._place.url} now, so this run stops. Its files are in "
                f"{self._directory}.",
                "Choose a different name for this run with rllm.trainer.experiment_name=NAME.",
            )

    def confirm(self) -> None:
        """Read the object, unless it was read in the last `SECONDS_WITHOUT_A_READ`.

        It is called before each write, because a new process may take over while a slow process copies many files.

        Raises:
            RllmError: a different process has taken over the URL.
        """
        now = time.monotonic()
        if now - self._confirmed > SECONDS_WITHOUT_A_READ:
            found = read_writer(self._place.read(WRITER))
            if found is not None and found.holder != self._writer.holder:
                self.is_lost = True
            else:
                self._confirmed = now
        self.require()

    def release(self) -> None:
        """Give up the URL. If this process has changed nothing, the object is as before."""
        self._ended.set()
        self._thread.join()
        if self.is_lost:
            return
        if self.is_current:
            self._writer = replace(self._writer, is_open=False)
            self._write()
        elif self._before is None:
            self._place.remove(WRITER)
        else:
            self._place.write(WRITER, _encode(replace(self._before, is_open=False)))

    def _renew(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_RENEWALS):
            try:
                self.confirm()
                self._write()
            except RllmError:
                return  # `require` reports it in the run's thread
            except Exception:  # noqa: BLE001  (the store is away: the thread that copies files reports it)
                continue

    def _write(self) -> None:
        self._place.write(WRITER, _encode(replace(self._writer, renewed=time.time())))


def _encode(writer: Writer) -> bytes:
    return json.dumps(asdict(writer)).encode()


def _watch(place: StorePlace, before: Writer) -> None:
    """Wait until the writer counts as ended.

    Raises:
        RllmError: it renews the object.
    """
    say(f"{place.url}: waiting up to {SECONDS_TO_WATCH:.0f} s to see if the run on {before.host} still writes")
    end = time.monotonic() + SECONDS_TO_WATCH
    while time.monotonic() < end:
        time.sleep(min(1.0, SECONDS_TO_WATCH))
        found = read_writer(place.read(WRITER))
        if found is not None and found != before:
            if not found.is_open:
                return
            raise RllmError(
                "locked-directory",
                f"A process on {found.host} is training in {place.url}.",
                "Wait for it, or choose a different name with rllm.trainer.experiment_name=NAME.",
            )
