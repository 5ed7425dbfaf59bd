"""A process that answers each input line with one output line, until its input ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

SECONDS_TO_START = 120.0
"""Time limit for the start. The process may need to import large packages from a slow disk."""
READY = "ready\n"


class DiedError(Exception):
    """The process ended instead of answering."""

    def __init__(self, what: str, code: int | None = None) -> None:
        super().__init__(what)
        self.code = code
        """Exit code of the process. If a signal killed it, minus the signal's number. None if it is unknown."""


class LateError(DiedError):
    """The process was killed, because its answer took too long."""


class NotReadyError(Exception):
    """The process reported at its start that it cannot answer."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.said = said


class LineProcess:
    """A process that runs a Python module. Do not use it from several threads at the same time.

    It writes ``ready``, or the reason why it is not ready. Then it reads a line, writes a line, and so on. It ends when
    its input ends, so it does not outlive this process.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    def start(
        cls,
        module: str,
        arguments: Sequence[str] = (),
        *,
        stderr: int | None = subprocess.DEVNULL,
        environment: Mapping[str, str] | None = None,
        within: float = SECONDS_TO_START,
    ) -> LineProcess:
        """Start a process, and wait until it is ready.

        Args:
            module: module to run with ``python -m``.
            arguments: its arguments.
            stderr: destination of its errors, as for `subprocess.Popen`. None: the standard error of this process.
            environment: additional environment variables. It also gets the environment of this process.
            within: time limit in seconds. If the process is not ready by then, it is killed.

        Raises:
            NotReadyError: its first line is not ``ready``.
            DiedError: it does not start, or takes too long.
            OSError: the system cannot start a process.
        """
        # -P keeps Python from importing modules from the current directory by mistake.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            encoding="utf-8",
            env={**os.environ, **(environment or {})},
            # Ctrl-C is for the run, which finishes its step and still needs this process.
            start_new_session=True,
        )
        started = cls(process)
        assert process.stdout is not None
        with started._killed_after(within) as late:
            said = process.stdout.readline()
        if said == READY:
            return started
        started.end()
        if late.is_set():
            raise DiedError(f"its process was not ready after {within:g} s")
        raise NotReadyError(said) if said else DiedError(f"`python -m {module}` does not start")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process. None while it runs."""
        return self._process.poll()

    def ask(self, line: str, within: float | None = None) -> str:
        """Send a line, and return the answer.

        Args:
            line: the line, without a line end.
            within: time limit in seconds, after which the process is killed. None: the process has its own limit.

        Raises:
            LateError: the process was killed.
            DiedError: the process ended.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with self._killed_after(within) as late:
            try:
                process.stdin.write(line + "\n")
                process.stdin.flush()
                answer = process.stdout.readline()
            except BrokenPipeError:
                answer = ""
        if late.is_set():
            raise LateError(f"killed after {within:g} s")
        if not answer:
            code = process.wait()
            raise DiedError(f"its process ended with {code}", code)
        return answer

    def end(self) -> None:
        """Kill the process. Call this after an error too, because the process may still write a late answer."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            # Unwritten data is lost, because the process has ended.
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()

    @contextmanager
    def _killed_after(self, seconds: float | None) -> Iterator[threading.Event]:
        """Kill the process if the context takes longer than `seconds`. Yield an event that is set in that case."""
        late = threading.Event()

        def kill() -> None:
            late.set()
            self._process.kill()

        timer = None if seconds is None else threading.Timer(seconds, kill)
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            yield late
        finally:
            if timer is not None:
                timer.cancel()
