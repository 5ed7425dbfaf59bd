"""The processes that generate and score, and the questions they are asked.

See `rllm_envs.reasoning_gym.worker` for what a line says.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import zlib
from collections.abc import Mapping
from functools import lru_cache
from threading import Lock
from typing import Any

from rllm_core.errors import ConfigError, RolloutError
from rllm_serving.line_process import DiedError, LineProcess, NotReadyError

MOST_PROCESSES = 4
WORKER = "rllm_envs.reasoning_gym.worker"
HINT = "Add --debug to see where, and choose another generator."


class TooLongError(Exception):
    """A question took more processor time than it was given."""


class GeneratorFailedError(RolloutError):
    """A generator raised an error over a question."""


class Process:
    """One process, started with its first question, and again after one that killed it. Safe to use from threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: LineProcess | None = None

    def ask(self, question: Mapping[str, Any]) -> Any:
        """The value of the response.

        Raises:
            TooLongError: it took longer than its ``seconds``.
            ConfigError: the options are wrong.
            GeneratorFailedError: the generator raised an error.
            RolloutError: the process ended.
        """
        with self._lock:
            response = self._response(json.dumps(question))
        if "refused" in response:
            raise ConfigError(*response["refused"])
        if "problem" in response:
            raise GeneratorFailedError("plugin-failed", f"reasoning-gym failed: {response['problem']}.", HINT)
        return response["value"]

    def close(self) -> None:
        """End the process. One that is in the middle of a question ends with it."""
        if self._lock.acquire(blocking=False):
            self._end()
            self._lock.release()

    def _response(self, line: str) -> dict[str, Any]:
        try:
            self._process = self._process or _started()
            response: dict[str, Any] = json.loads(self._process.ask(line))
        except DiedError as error:
            self._end()
            if error.code == -signal.SIGPROF:
                raise TooLongError from None
            raise RolloutError(
                "process-died", f"The process that runs reasoning-gym ended with {error.code}.", HINT
            ) from None
        except BaseException:  # also when the thread is interrupted: the process may still write the response
            self._end()
            raise
        return response

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()


def ask(question: Mapping[str, Any], place: str = "") -> Any:
    """Ask one of this process's workers; the same one for the same `place`, which may have made the entry before.

    Raises:
        TooLongError, ConfigError, RolloutError: see `Process.ask`.
    """
    processes = _processes(os.getpid())
    return processes[zlib.crc32(place.encode()) % len(processes)].ask(question)


@lru_cache(1)
def _processes(owner: int) -> tuple[Process, ...]:
    """Return the worker processes of the process `owner`. A fork starts without worker processes."""
    processes = tuple(Process() for _ in range(max(1, min(MOST_PROCESSES, os.cpu_count() or 1))))
    for each in processes:
        atexit.register(each.close)
    return processes


def _started() -> LineProcess:
    # Generators iterate over sets of strings. In a different order, a task would change after a resume.
    environment = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    try:
        return LineProcess.start(WORKER, environment=environment)
    except (DiedError, NotReadyError) as error:
        raise RolloutError(
            "process-not-started",
            f"The process that runs reasoning-gym does not start ({error}).",
            f"See why: {sys.executable} -m {WORKER}",
        ) from None
