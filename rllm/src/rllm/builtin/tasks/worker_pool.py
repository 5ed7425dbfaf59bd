"""A pool of processes that answer one question at a time. A process that dies is replaced."""

from __future__ import annotations

import atexit
import json
import queue
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rllm_serving.line_process import SECONDS_TO_START, DiedError, LineProcess


class WorkerPool:
    """Pool of up to `size` processes that run a module. Each starts on demand. The pool is safe to use from threads.

    See `LineProcess` for the protocol. SIGALRM ends a process if a question takes too long.
    """

    def __init__(
        self,
        module: str,
        size: int,
        arguments: Sequence[str] = (),
        stderr: int | None = subprocess.DEVNULL,
        seconds_to_start: float = SECONDS_TO_START,
    ) -> None:
        """Set up the pool without starting a process.

        Args:
            module: run by ``python -m``.
            size: maximum number of processes.
            arguments: command-line arguments of each process.
            stderr: destination of the processes' errors, as for `subprocess.Popen`. None: this process's stderr.
            seconds_to_start: time limit for the start. A process that is not ready by then is killed.
        """
        self._seconds_to_start = seconds_to_start
        self._module, self._arguments, self._stderr = module, arguments, stderr
        self._fatal: set[str] = set()
        """Questions that took too long. They are not asked again, because rollouts of a group are often equal."""
        self._places: queue.LifoQueue[LineProcess | None] = queue.LifoQueue()
        for _ in range(size):
            self._places.put(None)
        atexit.register(self.close)

    def ask(self, question: Mapping[str, Any]) -> Any:
        """Return the answer of the next free process.

        Raises:
            DiedError: the process ended instead of answering. The next question gets a new process.
            OSError: no process can be started.
        """
        return self.ask_line(json.dumps(question))

    def start(self) -> None:
        """Start a process now.

        Raises:
            DiedError, NotReadyError, OSError: it does not start.
        """
        process = self._places.get()
        try:
            process = process or self._started()
        finally:
            self._places.put(process)

    def ask_line(self, line: str, seconds: float | None = None) -> Any:
        """Run `ask` for a question that is already a JSON line. The process is killed after `seconds`.

        Raises:
            LateError: the process was killed because it took too long.
        """
        process = self._places.get()
        # A thread or a signal of an earlier question may have ended it since.
        if process is not None and process.exit_code is not None:
            process.end()
            process = None
        # Now, and not before the wait for a place: the process of another thread may have ended over it meanwhile.
        if line in self._fatal:
            self._places.put(process)
            raise DiedError("its process ended over the same question before")
        try:
            process = process or self._started()
            answer = process.ask(line, seconds)
        except BaseException as error:
            if isinstance(error, DiedError) and error.code == -signal.SIGALRM:
                self._fatal.add(line)
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
                process.end()
            # After all were taken: what is put here is what would be taken next.
            self._places.put(None)

    def _started(self) -> LineProcess:
        return LineProcess.start(self._module, self._arguments, stderr=self._stderr, within=self._seconds_to_start)
