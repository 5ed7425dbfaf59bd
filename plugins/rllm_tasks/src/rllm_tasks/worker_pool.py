"""Processes that answer one question at a time, and are replaced when they die over one."""

from __future__ import annotations

import atexit
import json
import queue
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any


class DiedError(Exception):
    """The process ended instead of answering."""


class WorkerPool:
    """Up to `size` processes of a module, each started when it is needed first. Safe to use from many threads.

    A process writes a line when it is ready, then reads a line of JSON and writes one, again and again. It ends when
    its input does, so that none outlives this process, and by SIGALRM when a question takes too long.
    """

    def __init__(self, module: str, size: int) -> None:
        self._module = module
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
        line = json.dumps(question)
        process = self._places.get()
        try:
            if line in self._fatal:
                raise DiedError("its process ended over the same question before")
            process = process or self._started()
            answer = self._answer(process, line)
        except BaseException:  # also when the thread is interrupted: the process may still write the answer
            if process is not None:
                _end(process)
            self._places.put(None)
            raise
        self._places.put(process)
        return json.loads(answer)

    def close(self) -> None:
        """End the processes that are free. Others end with their question, which has a deadline."""
        for _ in range(self._places.qsize()):
            if (process := self._places.get()) is not None:
                _end(process)
            self._places.put(None)

    def _started(self) -> subprocess.Popen[str]:
        # -P: what lies in the folder that the run is started in is not what a worker means to import.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            # Ctrl-C is for the run, which ends its step and asks on.
            start_new_session=True,
        )
        assert process.stdout is not None
        if not process.stdout.readline():
            _end(process)
            raise DiedError(f"`python -m {self._module}` does not start")
        return process

    def _answer(self, process: subprocess.Popen[str], question: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(question + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            code = process.wait()
            if code == -signal.SIGALRM:
                self._fatal.add(question)
            raise DiedError(f"its process ended with {code}")
        return answer


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        # What was not written is lost with the process.
        with suppress(BrokenPipeError):
            if pipe is not None:
                pipe.close()
