"""The training half in a separate process, so that sampling continues during updates.

Its requests have time limits, after which the process counts as hanging. Its output is printed in this process.

`training_child` is the other end. A process is used because Python's threads block each other. With two threads, a step
of `guess` took a third more CPU time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rllm_core.contracts.backend import RunContext, UpdatePlan, UpdateResult
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import BackendError
from rllm_core.notices import say, warn_once
from rllm_local.serialized_plan import SerializedPlan
from rllm_local.weights import shared_memory, shared_weights
from rllm_serving.child_process import ChildProcess
from rllm_serving.connection import PICKLE, Connection

T = TypeVar("T")
PARTS = 20


@dataclass
class WaitPolicy:
    """Limits that grow with the time that requests of the same name have taken."""

    first: float = 3600.0
    """Limit in seconds for the first request of a name. No earlier time exists, and it may download a model."""
    least: float = 600.0
    """Minimum limit in seconds for later requests."""
    times: float = 20.0
    """Multiple of the slowest request so far."""
    _slowest: dict[str, float] = field(default_factory=dict)
    """Seconds of the slowest answer, by name."""

    def limit(self, name: str) -> float:
        """Return the seconds that the next request of this name may take."""
        return max(self.least, self.times * self._slowest[name]) if name in self._slowest else self.first

    async def wait_for(self, name: str, answer: Awaitable[T]) -> T:
        """Wait for the answer to a request.

        Raises:
            TimeoutError: the limit has passed.
        """
        limit, task = self.limit(name), asyncio.ensure_future(answer)
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            # If this process was itself stopped, only one part is late. It then still waits for the other parts.
            for _ in range(PARTS):
                if (await asyncio.wait([task], timeout=limit / PARTS))[0]:
                    value = task.result()
                    self._slowest[name] = max(self._slowest.get(name, 0.0), loop.time() - started)
                    return value
            raise TimeoutError
        finally:
            task.cancel()


WARNING = "warning: "


class ChildLog:
    """A growing log file, which may be deleted while it is open. Only complete lines are printed, between this
    process's own lines."""

    def __init__(self, path: Path) -> None:
        self._file = path.open(encoding="utf-8", errors="replace")
        self._incomplete_line = ""

    def print_new_lines(self) -> None:
        """Print the new lines. A warning that this process has already printed is not repeated."""
        *lines, self._incomplete_line = (self._incomplete_line + self._file.read()).split("\n")
        for line in lines:
            if line.startswith(WARNING):
                warn_once(line.removeprefix(WARNING))
            else:
                say(line)

    def last_lines(self, count: int) -> list[str]:
        """Print the new lines, and return the last `count` lines of the whole log."""
        self.print_new_lines()
        self._file.seek(0)
        return self._file.read().strip().splitlines()[-count:]

    def close(self) -> None:
        """Print the remaining lines, including an incomplete last line, and close the file."""
        self.print_new_lines()
        if self._incomplete_line:
            say(self._incomplete_line)
        self._file.close()


SECONDS_TO_END = 10.0
"""Seconds that the process gets to end after its connection is closed. Normally it ends at once."""
LOG_LINES = 15
"""Number of lines from the end of its output that an error shows."""


class TrainingProcess:
    """A `Training` in a separate process, which ends when this process ends."""

    def __init__(self, on_end: Callable[[BackendError], None], wait_policy: WaitPolicy | None = None) -> None:
        """Start the process. It loads no model before `start`.

        Args:
            on_end: function that is called on the event loop if the process ends unexpectedly or is killed because it
                hangs.
            wait_policy: time limits for answers. None to use the defaults.
        """
        self._on_end = on_end
        self._wait_policy = wait_policy or WaitPolicy()
        ours, theirs = socket.socketpair()
        self._memory = shared_memory()
        inherited = [theirs.fileno(), self._memory]
        # -P: do not import modules from the current directory.
        program = [sys.executable, "-P", "-m", "rllm_local.training_child", *map(str, inherited)]
        # The directory is deleted at once, so that a killed process leaves no directory. Both ends keep the log open.
        with theirs, tempfile.TemporaryDirectory(prefix="rllm-training-") as directory:
            log = Path(directory) / "training.log"
            self._process = ChildProcess.spawn(program, log, {"PYTHONFAULTHANDLER": "1"}, inherited)
            self._log = ChildLog(log)
        self._requests: list[str] = []
        """Names of the running requests, oldest first."""
        self._failure: BackendError | None = None
        self._closed = False
        self._connecting = asyncio.create_task(Connection.open(ours, PICKLE))
        self._watching = asyncio.create_task(self._watch(), name="rllm-local-training")

    @property
    def pid(self) -> int:
        return self._process.pid

    async def start(self, run: RunContext) -> None:
        """Load the model in the process.

        Raises:
            ConfigError: an error of `load_trainer`.
        """
        # The process needs neither engine nor renderer, and a plugin spec cannot be sent.
        await self._ask("start", sys.path, replace(run, engine=None, renderer=None))

    def weights(self, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the trained weights: CPU tensors with the names, shapes and types of `like`. They change only while
        `update` or `load` runs."""
        return shared_weights(self._memory, like)

    async def columns(self, batch: TokenBatch, needs: frozenset[str]) -> Mapping[str, NDArray[np.float32]]:
        columns: Mapping[str, NDArray[np.float32]] = await self._ask("columns", replace(batch, groups=()), needs)
        return columns

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        result: UpdateResult = await self._ask("update", replace(batch, groups=()), SerializedPlan.from_plan(plan))
        return result

    async def call(self, function: Callable[..., T], *arguments: object) -> T:
        result: T = await self._ask("call", function, *arguments)
        return result

    async def save(self, directory: Path) -> None:
        await self._ask("save", directory.absolute())

    async def load(self, directory: Path) -> None:
        await self._ask("load", directory.absolute())

    async def close(self) -> None:
        """Stop the process, even in the middle of a request. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._watching.cancel()
        is_busy = bool(self._requests)
        await (await self._connecting).close()
        await self._process.end(0.0 if is_busy else SECONDS_TO_END)
        self._log.close()
        os.close(self._memory)

    async def _ask(self, name: str, *arguments: object) -> Any:
        """Return the process's answer. Raise the process's error, or BackendError if it has ended."""
        if self._failure is not None:
            raise self._failure
        connection = await self._connecting
        self._requests.append(name)
        try:
            answer = await self._wait_policy.wait_for(name, connection.ask((name, *arguments)))
        except TimeoutError:
            self._failure = self._failure or self._timeout_error(name)
            self._process.kill()
            await connection.close()
            await asyncio.shield(self._watching)
            raise self._failure from None
        except EOFError:
            await asyncio.shield(self._watching)
            assert self._failure is not None
            raise self._failure from None
        finally:
            self._requests.remove(name)
        value, error, where = answer
        self._log.print_new_lines()
        if error is not None:
            error.add_note(f"In the training process:\n{where}")
            raise error
        return value

    def _timeout_error(self, name: str) -> BackendError:
        stopped = " It was stopped, for example by SIGSTOP." if self._process.is_stopped else ""
        return BackendError(
            "process-timeout",
            f"The training process (pid {self.pid}) did not answer {name!r} within {self._wait_policy.limit(name):g} "
            f"seconds and was killed.{stopped}",
            "Run again with --resume to continue from the newest checkpoint. If the machine was busy, wait first.",
        )

    async def _watch(self) -> None:
        """Wait until the process ends, and report it."""
        await (await self._connecting).wait_until_end()
        if self._failure is None:
            self._failure = await self._end_error()
        self._on_end(self._failure)

    async def _end_error(self) -> BackendError:
        await self._process.end(SECONDS_TO_END)
        code = self._process.exit_code or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        doing = f"in {self._requests[0]!r}" if self._requests else "while it had nothing to do"
        out_of_memory = (
            "The system may have killed it because memory ran out. `--dry-run` shows the run's memory and keys that "
            "reduce it. "
        )
        lines = self._log.last_lines(LOG_LINES)
        return BackendError(
            "process-died",
            f"The training process {how} {doing}.",
            f"{out_of_memory if code == -signal.SIGKILL else ''}Continue from the newest checkpoint with --resume.",
            "\n".join(["The last lines of its output:", *lines]) if lines else "",
        )
