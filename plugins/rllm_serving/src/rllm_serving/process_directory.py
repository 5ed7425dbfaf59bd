"""Temporary directories of a process. If the process is killed, the next process removes its directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Self

OWNER = ".owner"
"""File that the owner keeps locked. The lock ends with the process, even after SIGKILL."""
VARIABLE = "RLLM_PROCESS_DIRECTORY"
"""Environment variable with the path of the directory. Processes that have it are killed with the directory."""


class ProcessDirectory:
    """A temporary directory of this process. Making one first removes the directories of dead processes."""

    def __init__(self, prefix: str, place: Path | None = None) -> None:
        """Create the directory.

        Args:
            prefix: first part of its name. It must begin with ``rllm-``.
            place: directory to create it in. None: the system's directory for temporary files.
        """
        parent = place or Path(tempfile.gettempdir())
        remove_abandoned_directories(parent)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        # Lock the file before it gets its name. Otherwise a different process could lock it and remove the directory.
        unlocked = self.path / f"{OWNER}.new"
        self._owner = unlocked.open("w", encoding="utf-8")
        fcntl.flock(self._owner, fcntl.LOCK_EX)
        unlocked.rename(self.path / OWNER)

    def claim_children(self) -> None:
        """Mark all processes that this process starts later. They are killed if it dies without calling `close`."""
        os.environ[VARIABLE] = str(self.path)

    def keep(self) -> None:
        """Keep the directory for the user, for example because an error message contains the path of a log in it."""
        (self.path / OWNER).unlink(missing_ok=True)
        self._owner.close()

    def close(self) -> None:
        """Remove the directory."""
        if os.environ.get(VARIABLE) == str(self.path):
            del os.environ[VARIABLE]
        shutil.rmtree(self.path, ignore_errors=True)
        self._owner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def remove_abandoned_directories(parent: Path) -> list[Path]:
    """Remove the directories of dead processes in `parent`, kill the children they claimed, and return the paths."""
    removed = []
    for owner in parent.glob(f"rllm-*/{OWNER}"):
        with contextlib.suppress(OSError), owner.open("r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _kill_processes_of(owner.parent)
            shutil.rmtree(owner.parent, ignore_errors=True)
            removed.append(owner.parent)
    return removed


def _kill_processes_of(directory: Path) -> None:
    """Kill the processes that `claim_children` marked. Processes of other users cannot be read, so they stay."""
    mark = f"{VARIABLE}={directory}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
