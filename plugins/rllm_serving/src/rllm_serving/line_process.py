"""A process that answers each input line with one output line, until its input ends."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import count

from rllm_serving.supervisor import end_supervised_command, supervise_command

SECONDS_TO_START = 120.0
"""Time limit for the start. The process may need to import large packages from a slow disk."""
SECONDS_TO_END = 10.0
READY = "ready"
CHUNK = 1 << 16


class DiedError(Exception):
    """The process ended instead of answering."""

    def __init__(self, what: str, code: int | None = None) -> None:
        super().__init__(what)
        self.code = code
        """Exit code of the process. If a signal killed it, minus the signal's number. None if it is unknown."""


class LateError(DiedError):
    """The process was killed, because its answer took too long."""


class StrayAnswerError(DiedError):
    """The process was killed, because it wrote a line that does not answer the call."""


class NotReadyError(Exception):
    """The process reported at its start that it cannot answer."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.said = said


class LineProcess:
    """A process that runs a Python module. Do not use it from several threads at the same time.

    It writes ``ready``, or the reason why it is not ready. Then it reads a line ``NUMBER QUESTION``, writes a line
    ``NUMBER ANSWER``, and so on (see `rllm_serving.line_worker`). It ends when its input ends. A supervisor kills it,
    and all processes that it has started, with `end` or when this process ends for any reason.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._numbers = count(1)
        self._unread = bytearray()
        assert process.stdin is not None and process.stdout is not None
        self._input, self._output = process.stdin, process.stdout
        os.set_blocking(self._input.fileno(), False)

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
            supervise_command([sys.executable, "-P", "-m", module, *arguments]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            bufsize=0,
            env={**os.environ, **(environment or {})},
            # Ctrl-C is for the run, which finishes its step and still needs this process.
            start_new_session=True,
        )
        started = cls(process)
        try:
            line = started._exchange(b"", within)
        except LateError:
            raise DiedError(f"its process was not ready after {within:g} s") from None
        except DiedError:
            raise DiedError(f"`python -m {module}` does not start") from None
        if line != READY:
            started.end()
            raise NotReadyError(line)
        return started

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process. None while it runs."""
        return self._process.poll()

    def ask(self, line: str, within: float | None = None) -> str:
        """Send a line, and return the answer. After any error, the process has ended.

        Args:
            line: the line, without a line end.
            within: time limit in seconds. None: the process has its own limit.

        Raises:
            LateError: the answer takes too long.
            StrayAnswerError: the process wrote a line that does not answer this call.
            DiedError: the process ended.
        """
        number = str(next(self._numbers))
        answered, _, answer = self._exchange(f"{number} {line}\n".encode(), within).partition(" ")
        if answered != number:
            self.end()
            raise StrayAnswerError(f"its process wrote {answered!r:.40} instead of an answer to call {number}")
        return answer

    def end(self) -> None:
        """Kill the process and all processes that it has started."""
        if self._process.poll() is None:
            end_supervised_command(self._process.pid)
        try:
            self._process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._input.close()
        self._output.close()

    def _exchange(self, data: bytes, within: float | None) -> str:
        """Write data, and return the next line. After any error, the process has ended."""
        try:
            return self._transfer(data, within)
        except BaseException:  # Also if the thread is interrupted, because the process may still write the answer.
            self.end()
            raise

    def _transfer(self, data: bytes, within: float | None) -> str:
        until = None if within is None else time.monotonic() + within
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            if data:
                selector.register(self._input, selectors.EVENT_WRITE)
            is_whole = b"\n" in self._unread
            while not is_whole:
                ready = selector.select(None if until is None else max(0.0, until - time.monotonic()))
                if not ready and within is not None:
                    raise LateError(f"killed after {within:g} s")
                for key, _ in ready:
                    if key.fileobj is self._output:
                        part = self._read()
                        self._unread += part
                        is_whole = b"\n" in part
                        continue
                    data = data[self._write(data) :]
                    if not data:
                        selector.unregister(self._input)
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode("utf-8", "replace")

    def _read(self) -> bytes:
        data = os.read(self._output.fileno(), CHUNK)
        if not data:
            code = self._process.wait()
            raise DiedError(f"its process ended with {code}", code)
        return data

    def _write(self, data: bytes) -> int:
        try:
            return os.write(self._input.fileno(), data[:CHUNK])
        except BrokenPipeError:
            return len(data)  # The process has ended, so its output ends too.
