"""The processes that generate and score, and the questions they are asked."""

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
from rllm_envs.reasoning_gym.options import ReasoningGymParams
from rllm_serving.line_process import DiedError, LineProcess, NotReadyError

SECONDS_TO_SET_UP = 300.0
"""Time limit in seconds of CPU time. A generator may read files or prepare all its entries."""


def check(params: ReasoningGymParams) -> None:
    """Raise ConfigError for a generator, option, level or system prompt that reasoning-gym does not have."""
    for level in params.levels or (params.level,):
        find_config(params, level)
    find_system_prompt(params)


def find_config(params: ReasoningGymParams, level: int | None = None) -> dict[str, Any]:
    """The options of the generator, as JSON, with those that levels set. `level` replaces the option of that name.

    Raises:
        ConfigError: reasoning-gym refuses them.
    """
    question = params.model_dump(include={"generator", "config", "level", "curriculum", "seed"})
    if level is not None:
        question["level"] = level
    question |= {"ask": "config", "size": params.train_size, "seconds": SECONDS_TO_SET_UP}
    try:
        config: dict[str, Any] = ask(question)
    except TooLongError as error:
        raise ConfigError(
            "generator-too-slow",
            f"Generator {params.generator!r} takes more than {SECONDS_TO_SET_UP:.0f} seconds to set up.",
            "Choose a smaller rllm.env.env_args.train_size, or other options.",
        ) from error
    return config


def find_system_prompt(params: ReasoningGymParams) -> str | None:
    """Return the system message. Text with white space is used unchanged; a single word names a reasoning-gym prompt.

    Raises:
        ConfigError: reasoning-gym has no prompt of this name.
    """
    prompt = params.system_prompt
    return prompt if prompt is None or len(prompt.split()) > 1 else _find_named_prompt(prompt)


@lru_cache
def _find_named_prompt(name: str) -> str:
    return str(ask({"ask": "system_prompt", "name": name, "seconds": SECONDS_TO_SET_UP}))


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
            self._process = self._process or _start_process()
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


def _start_process() -> LineProcess:
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
