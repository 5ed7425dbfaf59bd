"""Processes that answer one question at a time, and are replaced when they die over one."""

from __future__ import annotations

import atexit
import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

SECONDS_TO_START = 120.0
"""A process imports what it needs, from a slow disk perhaps."""


class DiedError(Exception):
    """The process ended instead of answering."""


class LateError(DiedError):
    """It was killed, as the answer took too long."""


class RefusedError(Exception):
    """A process said at its start why it cannot answer."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.said = said


class WorkerPool:
    """Up to `size` processes of a module, each started when it is needed first. Safe to use from many threads.

    A process writes ``ready`` (or why it is not), then reads a line of JSON and writes one, again and again. It ends
    when its input does, so that none outlives this process, and by SIGALRM when a question takes too long.
    """

    def __init__(
        self,
        module: str,
        size: int,
        arguments: Sequence[str] = (),
        stderr: int | None = subprocess.DEVNULL,
        seconds_to_start: float = SECONDS_TO_START,
    ) -> None:
        """Start none yet.

        Args:
            module: run by ``python -m``.
            size: most processes.
            arguments: of each.
            stderr: where their errors go, as for `subprocess.Popen`; None: where those of this process go.
            seconds_to_start: a process that is not ready by then is killed.
        """
        self._seconds_to_start = seconds_to_start
        self._module, self._arguments, self._stderr = module, arguments, stderr
        self._fatal: set[str] = set()
        """Questions that took too long: a group of attempts tends to say the same."""
        self._places: queue.LifoQueue[subprocess.Popen[str] | None] = queue.LifoQueue()
        for _ in range(size):
            self._places.put(None)
        atexit.register(self.close)

    def ask(self, question: Mapping[str, Any]) -> Any:
        """The answer of the next process that is free.

        Raises:
            DiedError: it ended instead; the next question gets another.
            OSError: no process can be started.
        """
        return self.ask_line(json.dumps(question))

    def start(self) -> None:
        """Start a process now.

        Raises:
            DiedError, RefusedError, OSError: it does not start.
        """
        process = self._places.get()
        try:
            process = process or self._started()
        finally:
            self._places.put(process)

    def ask_line(self, line: str, seconds: float | None = None) -> Any:
        """As `ask`, of a question that is JSON already, whose process is killed after so many seconds.

        Raises:
            LateError: it was.
        """
        process = self._places.get()
        try:
            if line in self._fatal:
                raise DiedError("its process ended over the same question before")
            process = process or self._started()
            answer = self._answer(process, line, seconds)
        except BaseException:  # also when the thread is interrupted: the process may still write the answer
            if process is not None:
                _end(process)
            self._places.put(None)
            raise
        self._places.put(process)
        return json.loads(answer)

    def close(self) -> None:
        """End the processes that are free. Others end with their question, which has a deadline."""
        free = []
        with suppress(queue.Empty):
            while True:
                free.append(self._places.get_nowait())
        for process in free:
            if process is not None:
                _end(process)
            # After all were taken: what is put here is what would be taken next.
            self._places.put(None)

    def _started(self) -> subprocess.Popen[str]:
        # -P: what lies in the folder that the run is started in is not what a worker means to import.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", self._module, *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            encoding="utf-8",
            # Ctrl-C is for the run, which ends its step and asks on.
            start_new_session=True,
        )
        assert process.stdout is not None
        with _killing(process, self._seconds_to_start) as late:
            said = process.stdout.readline()
        if said != "ready\n":
            _end(process)
            if late.is_set():
                raise DiedError(f"its process was not ready after {self._seconds_to_start:g} s")
            raise RefusedError(said) if said else DiedError(f"`python -m {self._module}` does not start")
        return process

    def _answer(self, process: subprocess.Popen[str], question: str, seconds: float | None) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        with _killing(process, seconds) as late:
            try:
                process.stdin.write(question + "\n")
                process.stdin.flush()
                answer = process.stdout.readline()
            except BrokenPipeError:
                answer = ""
        if late.is_set():
            raise LateError(f"killed after {seconds:g} s")
        if not answer:
            code = process.wait()
            if code == -signal.SIGALRM:
                self._fatal.add(question)
            raise DiedError(f"its process ended with {code}")
        return answer


@contextmanager
def _killing(process: subprocess.Popen[str], seconds: float | None) -> Iterator[threading.Event]:
    """Kill a process that is waited for longer than so many seconds. Yields what is set then."""
    late = threading.Event()

    def kill() -> None:
        late.set()
        process.kill()

    timer = None if seconds is None else threading.Timer(seconds, kill)
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield late
    finally:
        if timer is not None:
            timer.cancel()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        # What was not written is lost with the process.
        with suppress(BrokenPipeError):
            if pipe is not None:
                pipe.close()
