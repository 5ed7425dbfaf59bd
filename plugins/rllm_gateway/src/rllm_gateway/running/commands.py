"""Runs an agent that is a program: a process per attempt, the task on its standard input."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from rllm_core.errors import ConfigError, PluginError
from rllm_core.notices import warn_once
from rllm_gateway.running import forking
from rllm_gateway.running.agent_server import AgentServer
from rllm_gateway.running.outcome import Outcome, last_lines


class CommandRunner:
    """Starts a program for every attempt."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        """Start nothing yet; logs lie in `folder`."""
        self._command = list(command)
        self._folder = folder
        self._numbers = count()

    async def run(self, task: Mapping[str, Any], environment: Mapping[str, str]) -> Outcome:
        """Run the program to its end. Cancelled, it kills the program and all that this has started.

        What it returned is the last line of its standard output, where that is a JSON object with ``reward`` or
        ``answer``.

        Raises:
            PluginError: it cannot be started.
        """
        number = next(self._numbers)
        log, output = self._folder / f"{number}.log", self._folder / f"{number}.out"
        try:
            with log.open("wb") as errors, output.open("wb") as written:
                starting = asyncio.ensure_future(self._start(environment, written, errors))
                try:
                    # Cancelled while it starts, asyncio would end the program and leave what that has started.
                    process = await asyncio.shield(starting)
                except asyncio.CancelledError:
                    await _killed(await starting)
                    raise
            try:
                await process.communicate(json.dumps(dict(task)).encode())
            finally:
                await _killed(process)
            said = last_lines(output)
            assert process.returncode is not None
            return Outcome(process.returncode, _returned(said), last_lines(log) or said)
        finally:
            log.unlink(missing_ok=True)
            output.unlink(missing_ok=True)

    async def close(self) -> None:
        """Nothing to do: programs end with their attempts."""

    async def _start(self, environment: Mapping[str, str], output: Any, errors: Any) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=errors,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        except OSError as error:
            raise PluginError(
                f"{self._command[0]} cannot be started: {error}.", "Fix rllm.workflow.workflow_args.command."
            ) from error


class WarmCommandRunner:
    """Runs a Python program in forks of a process that has imported its packages."""

    def __init__(self, command: Sequence[str], preload: Sequence[str], folder: Path) -> None:
        """Start nothing yet. Logs are written to `folder`."""
        options = count_python_options(command)
        settings = {"command": [*command], "options": options, "preload": [*preload]}
        program = [*command[:options], forking.__file__, json.dumps(settings)]
        remedy = "Fix rllm.workflow.workflow_args.preload, or remove it: then each rollout starts a new Python."
        self._server = AgentServer(program, " ".join(command), folder, remedy)
        self._folder = folder

    async def run(self, task: Mapping[str, Any], environment: Mapping[str, str]) -> Outcome:
        """Run the program to its end, as `CommandRunner.run` does.

        Raises:
            PluginError: the packages cannot be imported.
            RolloutError: the process that starts programs has died.
        """
        number = self._server.new_number()
        log, output = self._folder / f"{number}.log", self._folder / f"{number}.out"
        order = {"environment": dict(environment), "task": dict(task), "log": str(log), "output": str(output)}
        try:
            code = await self._server.run(number, order)
            if not self._server.forks:
                warn_once(
                    "rllm.workflow.workflow_args.preload has no effect, so each rollout starts a new Python: "
                    "a package in the list starts threads, or the system is not Linux."
                )
            said = last_lines(output)
            return Outcome(code, _returned(said), last_lines(log) or said)
        finally:
            log.unlink(missing_ok=True)
            output.unlink(missing_ok=True)

    async def close(self) -> None:
        """End all programs."""
        await self._server.close()


def count_python_options(command: Sequence[str]) -> int:
    """Return the number of words before the program of a command such as ``python -u my_program.py``.

    Raises:
        ConfigError: the command does not run a file or a module with Python.
    """
    for number, word in enumerate(command):
        if number and (word == "-m" or word.endswith(".py")):
            if Path(command[0]).name.startswith("python") and len(command) > number + (word == "-m"):
                return number
            break
        if number and (not word.startswith("-") or word == "-c"):
            break
    raise ConfigError(
        f"rllm.workflow.workflow_args.preload is set, and the command is {' '.join(command)!r}.",
        "`preload` needs a Python program: command=[python,my_program.py] or command=[python,-m,my_package].",
    )


async def _killed(process: asyncio.subprocess.Process) -> None:
    """End a program, and what it has left behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _returned(lines: Sequence[str]) -> Any:
    """The object of the last line, where it is one of ours; other output is the program's own."""
    try:
        said = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return said if isinstance(said, Mapping) and said.keys() & {"reward", "answer"} else None
