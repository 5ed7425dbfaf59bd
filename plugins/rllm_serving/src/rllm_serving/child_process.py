"""A server of ours in a process of its own: with a log, ended for sure, and never left behind.

It holds the other end of its standard input. However this process ends, the pipe closes, and `parent.when_parent_ends`
tells the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PAUSE = 0.05


class ChildProcess:
    """A program and everything that it starts: a process group of its own."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.log = log
        """What it has written."""
        self._process = process

    @classmethod
    def spawn(
        cls, arguments: Sequence[str], log: Path, environment: Mapping[str, str], inherited: Sequence[int] = ()
    ) -> ChildProcess:
        """Start a program.

        Args:
            arguments: the program and its arguments.
            log: a file, made anew, for its output and its errors.
            environment: what it gets beside the environment of this process.
            inherited: file descriptors that it gets.

        Raises:
            OSError: it cannot be started.
        """
        with log.open("wb") as output:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=tuple(inherited),
                env={**os.environ, **environment},
                # Ctrl-C in a terminal goes to every process in front; the run still needs this one to save.
                start_new_session=True,
            )
        return cls(process, log)

    @property
    def pid(self) -> int:
        """Also the id of its process group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None: it runs."""
        return self._process.poll()

    @property
    def stopped(self) -> bool:
        """True if a signal has stopped it. False where the system does not say."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in "Tt"

    def exit_code_within(self, seconds: float) -> int | None:
        """As `exit_code`, after so long at most. Blocks."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def last_lines(self, count: int) -> list[str]:
        """The last lines of its log, for an error."""
        return self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-count:]

    async def end(self, within: float) -> None:
        """Close its standard input, wait until it has ended by itself, and kill the whole group in any case.

        Args:
            within: seconds that it has.
        """
        self._hang_up()
        given_up = time.monotonic() + within
        while self._process.poll() is None and time.monotonic() < given_up:
            await asyncio.sleep(PAUSE)
        self.kill()

    def kill(self) -> None:
        """End every process of the group at once."""
        self._hang_up()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def _hang_up(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
