"""The processes that generate and score, and the questions they are asked.

See `rllm_reasoning_gym.worker` for what a line says.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from threading import Lock
from typing import Any

from rllm_core.errors import ConfigError, RolloutError

MOST_PROCESSES = 4
HINT = "Add --debug to see where, and choose another generator."


class TooLongError(Exception):
    """A question took more processor time than it was given."""


class GeneratorFailedError(RolloutError):
    """A generator raised an error over a question."""


class Process:
    """One process, started with its first question, and again after one that killed it. Safe to use from threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[str] | None = None

    def ask(self, question: Mapping[str, Any]) -> Any:
        """The value of the reply.

        Raises:
            TooLongError: it took longer than its ``seconds``.
            ConfigError: the options are wrong.
            GeneratorFailedError: the generator raised an error.
            RolloutError: the process ended.
        """
        with self._lock:
            reply = self._reply(json.dumps(question))
        if "refused" in reply:
            raise ConfigError(*reply["refused"])
        if "problem" in reply:
            raise GeneratorFailedError(f"reasoning-gym failed: {reply['problem']}.", HINT)
        return reply["value"]

    def close(self) -> None:
        """End the process. One that is in the middle of a question ends with it."""
        if self._lock.acquire(blocking=False):
            self._end()
            self._lock.release()

    def _reply(self, line: str) -> dict[str, Any]:
        try:
            process = self._process = self._process or _started()
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):  # nothing can be read then either
                process.stdin.write(line + "\n")
                process.stdin.flush()
            written = process.stdout.readline()
            reply: dict[str, Any] | None = json.loads(written) if written else None
        except BaseException:  # also when the thread is interrupted: the process may still write the reply
            self._end()
            raise
        if reply is None:
            code = process.wait()
            self._end()
            if code == -signal.SIGPROF:
                raise TooLongError
            raise RolloutError(f"The process that runs reasoning-gym ended with {code}.", HINT)
        return reply

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            # What was not written is lost with the process.
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()


def ask(question: Mapping[str, Any], place: str = "") -> Any:
    """Ask one of this process's workers; the same one for the same `place`, which may have made the entry before.

    Raises:
        TooLongError, ConfigError, RolloutError: see `Process.ask`.
    """
    processes = _processes(os.getpid())
    return processes[zlib.crc32(place.encode()) % len(processes)].ask(question)


@lru_cache(1)
def _processes(owner: int) -> tuple[Process, ...]:
    """Those of the process `owner`: a fork has none yet."""
    processes = tuple(Process() for _ in range(max(1, min(MOST_PROCESSES, os.cpu_count() or 1))))
    for each in processes:
        atexit.register(each.close)
    return processes


def _started() -> subprocess.Popen[str]:
    # -P: what lies in the folder that the run is started in is not what a worker means to import.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "rllm_reasoning_gym.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        # Generators go through sets of texts: with another order a task would ask something else after a resume.
        env=os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        # Ctrl-C is for the run, which ends its step and asks on.
        start_new_session=True,
    )
    assert process.stdout is not None
    if not process.stdout.readline():
        process.kill()
        process.wait()
        raise RolloutError(
            "The process that runs reasoning-gym does not start.",
            f"See why: {sys.executable} -m rllm_reasoning_gym.worker",
        )
    return process
