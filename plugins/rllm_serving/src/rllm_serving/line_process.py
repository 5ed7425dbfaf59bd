"""A process that answers one line with one line, again and again, until its input ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

SECONDS_TO_START = 120.0
"""A process imports what it needs, from a slow disk perhaps."""
READY = "ready\n"


class DiedError(Exception):
    """The process ended instead of answering."""

    def __init__(self, what: str, code: int | None = None) -> None:
        super().__init__(what)
        self.code = code
        """Its exit code, minus the signal that ended it; None where that says nothing."""


class LateError(DiedError):
    """It was killed, as the answer took too long."""


class NotReadyError(Exception):
    """A process said at its start why it cannot answer."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.said = said


class LineProcess:
    """Runs a module of Python. Not safe to use from several threads at once.

    It writes ``ready`` (or why it is not), then reads a line and writes one. It ends when its input does, so that it
    does not outlive this process.
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
        """Start one, and wait until it is ready.

        Args:
            module: run by ``python -m``.
            arguments: given to it.
            stderr: where its errors go, as for `subprocess.Popen`; None: where those of this process go.
            environment: what it gets beside the environment of this process.
            within: seconds; it is killed when it is not ready by then.

        Raises:
            NotReadyError: it says something else than ``ready``.
            DiedError: it does not start, or takes too long.
            OSError: there can be no further process.
        """
        # -P: what lies in the folder that the run is started in is not what a worker means to import.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            encoding="utf-8",
            env={**os.environ, **(environment or {})},
            # Ctrl-C is for the run, which ends its step and asks on.
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
        """None: it runs."""
        return self._process.poll()

    def ask(self, line: str, within: float | None = None) -> str:
        """The answer to a line.

        Args:
            line: without an end of line.
            within: seconds, after which the process is killed; None: it has its own deadline.

        Raises:
            LateError: it was killed.
            DiedError: it ended.
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
        """Kill it. Also after an error: it may still write an answer that nobody waits for."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            # What was not written is lost with the process.
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()

    @contextmanager
    def _killed_after(self, seconds: float | None) -> Iterator[threading.Event]:
        """Kill it when it is waited for longer. Yields what is set then."""
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
