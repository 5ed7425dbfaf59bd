"""Run an agent, each rollout in a separate process: a function, a program, or a program with imported packages."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from rllm_core.errors import ConfigError, PluginError, RolloutError
from rllm_core.notices import warn_once
from rllm_gateway.running import forking
from rllm_gateway.running.target import Target
from rllm_gateway.session import OpenedSession

LAST_LINES = 15
LAST_BYTES = 16_384


URL, TASK = "RLLM_SESSION_URL", "RLLM_TASK"
NO_TRACES = "OPENAI_AGENTS_DISABLE_TRACING"
LONGEST = 100_000
"""Maximum size of a task in an environment variable, in bytes. Linux allows 131,072. A larger task is passed only on
standard input."""
LOCAL = ("127.0.0.1", "localhost")


def environment_of(session: OpenedSession, task: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables of one rollout: URLs and keys for the clients of OpenAI and Anthropic."""
    variables = {
        "OPENAI_BASE_URL": session.openai_url(),
        # litellm and old clients
        "OPENAI_API_BASE": session.openai_url(),
        "OPENAI_API_KEY": session.key,
        "ANTHROPIC_BASE_URL": session.anthropic_url(),
        "ANTHROPIC_API_KEY": session.key,
        URL: session.url,
        # openai-agents would send its traces to OpenAI with this key, which OpenAI does not accept.
        NO_TRACES: os.environ.get(NO_TRACES, "1"),
    }
    said = json.dumps(dict(task))
    if len(said) <= LONGEST:
        variables[TASK] = said
    for name in ("NO_PROXY", "no_proxy"):
        # The machine's proxy would search for the gateway on a different machine.
        variables[name] = ",".join(filter(None, (os.environ.get(name, ""), *LOCAL)))
    return variables


@dataclass(frozen=True)
class Outcome:
    """The result of an agent's process."""

    code: int
    """Exit code. If a signal killed the process, minus the signal's number."""
    returned: Any
    """JSON data that the agent returned. None if it returned none."""
    last_lines: tuple[str, ...]
    """Last lines of its output, errors included."""

    @property
    def failure(self) -> str:
        """Description of the failure, with the exit code and the last line."""
        ended = f"exit code {self.code}" if self.code >= 0 else f"signal {-self.code}"
        said = f": {self.last_lines[-1].strip()}" if self.last_lines else ", and printed nothing"
        return f"the agent failed with {ended}{said}"


def last_lines(log: Path) -> tuple[str, ...]:
    """Return the last lines of a log. Empty if the log does not exist."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LAST_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(line for line in text.splitlines() if line.strip())[-LAST_LINES:]


SECONDS_TO_START = 120.0


class AgentServer:
    """Sends orders to a process that starts agents. It starts the process on first use, and again after it has died."""

    def __init__(self, program: Sequence[str], agent: str, directory: Path, remedy: str) -> None:
        """Start nothing yet.

        Args:
            program: the program that starts the process, and its arguments.
            agent: the agent's name, for errors.
            directory: folder for the process's log.
            remedy: hint of the error if the process does not start.
        """
        self._program = list(program)
        self._agent = agent
        self._directory = directory
        self._remedy = remedy
        self.forks = True
        """False if the process starts a new Python for each agent."""
        self._numbers = count()
        self._running: dict[int, asyncio.Future[int]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    def new_number(self) -> int:
        """Return the number of the next agent."""
        return next(self._numbers)

    async def run(self, number: int, order: Mapping[str, Any]) -> int:
        """Run an agent to its end, and return its exit code. Cancelled, it kills the agent and its children.

        Raises:
            PluginError: no process can be started.
            RolloutError: the process that starts agents has died.
        """
        process = await self._started()
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._running[number] = future
        _send(process, {"start": number, **order})
        try:
            return await future
        except asyncio.CancelledError:
            _send(process, {"kill": number})
            raise
        finally:
            self._running.pop(number, None)

    async def close(self) -> None:
        """End all agents."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                # It kills its agents when its input ends. If it were killed itself, the agents would keep running.
                assert self._process.stdin is not None
                self._process.stdin.close()
                try:
                    async with asyncio.timeout(5.0):
                        await self._process.wait()
                except TimeoutError:
                    self._process.kill()
                    await self._process.wait()
        if self._reading is not None:
            await asyncio.wait({self._reading})

    async def _started(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                self._process = await self._start()
                self._reading = asyncio.create_task(self._read(self._process), name="rllm-agents")
            return self._process

    async def _start(self) -> asyncio.subprocess.Process:
        errors = self._directory / "agent_server.log"
        with errors.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *self._program,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                # Ctrl-C is for the run, which finishes its step first.
                start_new_session=True,
            )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(SECONDS_TO_START):
                said = await process.stdout.readline()
        except TimeoutError:
            said = b""
        self.forks = said.strip() == b"ready"
        if not said.startswith(b"ready"):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            why = " | ".join(last_lines(errors)) or "it printed nothing"
            raise PluginError(
                "agent-not-started",
                f"The process that starts the agent {self._agent} does not start: {why}.",
                self._remedy,
            )
        return process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            said = json.loads(line)
            future = self._running.get(said["ended"])
            if future is not None and not future.done():
                future.set_result(said["code"])
        await process.wait()
        for future in self._running.values():
            if not future.done():
                future.set_exception(
                    RolloutError(
                        "process-died",
                        "The process that starts agents has died.",
                        "The system may have killed it because memory ran out. Run `dmesg` to check.",
                    )
                )


def _send(process: asyncio.subprocess.Process, order: Mapping[str, Any]) -> None:
    if process.stdin is not None and not process.stdin.is_closing():
        process.stdin.write(json.dumps(order).encode() + b"\n")


class FunctionRunner:
    """Starts an agent's function through a `fork_server`."""

    def __init__(self, target: Target, directory: Path) -> None:
        """Start nothing yet. Logs are written to `directory`."""
        path = json.dumps([*sys.path, os.getcwd()] if "" not in sys.path else sys.path)  # noqa: PTH109
        program = [sys.executable, "-P", "-m", "rllm_gateway.running.fork_server"]
        remedy = "Import the agent's file in Python to see the error."
        self._server = AgentServer([*program, target.place, target.function, path], str(target), directory, remedy)
        self._directory = directory

    async def run(self, task: Mapping[str, Any], environment: Mapping[str, str]) -> Outcome:
        """Run the agent to its end. If this is cancelled, kill the agent and all processes that it has started.

        Raises:
            PluginError: no process can be started.
            RolloutError: the process that starts agents has died.
        """
        number = self._server.new_number()
        log, result = self._directory / f"{number}.log", self._directory / f"{number}.json"
        order = {"environment": dict(environment), "task": dict(task), "log": str(log), "result": str(result)}
        try:
            code = await self._server.run(number, order)
            returned = json.loads(result.read_bytes()) if result.exists() else None
            return Outcome(code, returned, last_lines(log))
        finally:
            log.unlink(missing_ok=True)
            result.unlink(missing_ok=True)

    async def close(self) -> None:
        """End all agents."""
        await self._server.close()


class CommandRunner:
    """Starts a program for every rollout."""

    def __init__(self, command: Sequence[str], directory: Path) -> None:
        """Start nothing yet. Logs are written to `directory`."""
        self._command = list(command)
        self._directory = directory
        self._numbers = count()

    async def run(self, task: Mapping[str, Any], environment: Mapping[str, str]) -> Outcome:
        """Run the program to its end. If this is cancelled, kill the program and all processes that it has started.

        The program's result is the last line of its standard output, if that line is a JSON object with ``reward`` or
        ``answer``.

        Raises:
            PluginError: the program cannot be started.
        """
        number = next(self._numbers)
        log, output = self._directory / f"{number}.log", self._directory / f"{number}.out"
        try:
            with log.open("wb") as errors, output.open("wb") as written:
                starting = asyncio.ensure_future(self._start(environment, written, errors))
                try:
                    # If the start were cancelled, asyncio would kill the program, but not its child processes.
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
        """Do nothing, because programs end with their rollouts."""

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
                "agent-not-started",
                f"{self._command[0]} cannot be started: {error}.",
                "Set rllm.workflow.workflow_args.command to a program that starts, for example [python,my_program.py].",
            ) from error


class WarmCommandRunner:
    """Runs a Python program in forks of a process that has imported its packages."""

    def __init__(self, command: Sequence[str], preload: Sequence[str], directory: Path) -> None:
        """Start nothing yet. Logs are written to `directory`."""
        options = count_python_options(command)
        settings = {"command": [*command], "options": options, "preload": [*preload]}
        program = [*command[:options], forking.__file__, json.dumps(settings)]
        remedy = "Correct or remove rllm.workflow.workflow_args.preload. Without it each rollout starts a new Python."
        self._server = AgentServer(program, " ".join(command), directory, remedy)
        self._directory = directory

    async def run(self, task: Mapping[str, Any], environment: Mapping[str, str]) -> Outcome:
        """Run the program to its end, as `CommandRunner.run` does.

        Raises:
            PluginError: the packages cannot be imported.
            RolloutError: the process that starts programs has died.
        """
        number = self._server.new_number()
        log, output = self._directory / f"{number}.log", self._directory / f"{number}.out"
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
        "conflicting-keys",
        f"rllm.workflow.workflow_args.preload is set, but the command {' '.join(command)!r} is not a Python program.",
        "Remove `preload`, or set command=[python,my_program.py] or command=[python,-m,my_package].",
    )


async def _killed(process: asyncio.subprocess.Process) -> None:
    """Kill a program, and the processes that it has left running."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _returned(lines: Sequence[str]) -> Any:
    """Return the JSON object in the last line, if it is a result. Other output is not a result."""
    try:
        said = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return said if isinstance(said, Mapping) and said.keys() & {"reward", "answer"} else None
