"""Run a server in a child process with a log. The child never outlives this process.

This process has the other end of the child's standard input. If this process ends for any reason, the pipe closes, and
`when_parent_ends` and `end_with_parent` end the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PAUSE = 0.05
SECONDS_TO_BE_GONE = 1.0
LOG_LINES = 15
"""Number of lines from the end of a log that an error shows."""


class ChildProcess:
    """A program and all processes that it starts. They form a separate process group."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.log = log
        """File with its output."""
        self._process = process

    @classmethod
    def spawn(
        cls, arguments: Sequence[str], log: Path, environment: Mapping[str, str], inherited: Sequence[int] = ()
    ) -> ChildProcess:
        """Start a program.

        Args:
            arguments: the program and its arguments.
            log: file for its output and its errors. An existing file is replaced.
            environment: additional environment variables. It also gets the environment of this process.
            inherited: file descriptors that it inherits.

        Raises:
            OSError: the program cannot be started.
        """
        with log.open("wb") as output:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=tuple(inherited),
                env={**os.environ, **environment},
                # Ctrl-C in a terminal goes to all foreground processes, but the run needs this process for saving.
                start_new_session=True,
            )
        return cls(process, log)

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its process group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process. None while it runs."""
        return self._process.poll()

    @property
    def is_stopped(self) -> bool:
        """True if a signal has stopped (paused) it. False if the system does not report this."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in "Tt"

    def log_tail(self) -> str:
        """Return the last lines of its log, and how it has ended, for the details of an error.

        Blocks for a second if it has not ended. Its connections close before its exit code is available.
        """
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-LOG_LINES:]
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(SECONDS_TO_BE_GONE)
            lines.append(f"(killed by {signal.Signals(-code).name})" if code < 0 else f"(exit code {code})")
        return "\n".join(["Last lines of its log:", *lines])

    async def end(self, within: float) -> None:
        """Close its standard input, wait until it has ended by itself, and then kill the whole process group.

        Args:
            within: seconds that the process has to end by itself.
        """
        self._hang_up()
        given_up = time.monotonic() + within
        while self._process.poll() is None and time.monotonic() < given_up:
            await asyncio.sleep(PAUSE)
        self.kill()

    def kill(self) -> None:
        """Kill all processes of the group immediately."""
        self._hang_up()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def _hang_up(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()


def when_parent_ends(call: Callable[[], None]) -> None:
    """Call a function on the running event loop when standard input is closed. Its input is discarded."""
    loop = asyncio.get_running_loop()

    def tell() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(call)

    _watch(tell)


def end_with_parent() -> None:
    """End this process when standard input is closed, even during a computation. Its input is discarded."""
    _watch(lambda: os._exit(0))


def _watch(call: Callable[[], None]) -> None:
    descriptor = sys.stdin.fileno()

    def wait() -> None:
        while os.read(descriptor, 1 << 16):
            pass
        call()

    threading.Thread(target=wait, name="rllm-parent", daemon=True).start()
