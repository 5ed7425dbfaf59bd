"""Run an agent, each rollout in a separate process: a function or a program."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from rllm.builtin.sandboxes.process import LAST_BYTES, lines_at_end
from rllm_core.errors import PluginError, RolloutError
from rllm_gateway.running.calling import partial_result
from rllm_gateway.running.target import Target
from rllm_gateway.sessions.link import OpenedSession, RewardSource
from rllm_serving.supervisor import end_supervised_command, supervise_command

URL, TASK = "RLLM_SESSION_URL", "RLLM_TASK"
NO_TRACES = "OPENAI_AGENTS_DISABLE_TRACING"
LONGEST = 100_000
"""Maximum size of a task in an environment variable, in bytes. Linux allows 131,072. A larger task is passed only on
standard input."""
LOCAL = ("127.0.0.1", "localhost")


def environment_of(session: OpenedSession, task: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables of one rollout: URLs and keys for clients of OpenAI, Anthropic and Google."""
    variables = {
        "OPENAI_BASE_URL": session.openai_url(),
        # litellm and old clients
        "OPENAI_API_BASE": session.openai_url(),
        "OPENAI_API_KEY": session.key,
        "ANTHROPIC_BASE_URL": session.anthropic_url(),
        "ANTHROPIC_API_KEY": session.key,
        "GOOGLE_GEMINI_BASE_URL": session.anthropic_url(),
        "GEMINI_API_KEY": session.key,
        URL: session.url,
        # openai-agents would send its traces to OpenAI with this key, which OpenAI does not accept.
        NO_TRACES: os.environ.get(NO_TRACES, "1"),
    }
    # If the user has set these, Google's client would use a different key or service.
    google = {
        "GOOGLE_API_KEY": session.key,
        "GOOGLE_GENAI_USE_ENTERPRISE": "false",
        "GOOGLE_GENAI_USE_VERTEXAI": "false",
    }
    variables |= {name: value for name, value in google.items() if name in os.environ}
    task_json = json.dumps(dict(task))
    if len(task_json) <= LONGEST:
        variables[TASK] = task_json
    for name in ("NO_PROXY", "no_proxy"):
        # The machine's proxy would search for the gateway on a different machine.
        variables[name] = ",".join(filter(None, (os.environ.get(name, ""), *LOCAL)))
    return variables


@dataclass(frozen=True)
class Outcome:
    """The result of an agent's process."""

    code: int
    """Exit code. If a signal killed the process, minus the signal's number."""
    result: Any
    """JSON data that the agent returned. None if it returned none."""
    last_lines: tuple[str, ...]
    """Last lines of its output, errors included."""
    timed_out: bool = False
    """True if it was stopped at the time limit of its task."""
    rejected_reward: bool = False
    """True if the program printed a reward that does not count, because the reward has a different source."""

    @property
    def failure(self) -> str:
        """Description of the failure, with the exit code and the last line."""
        if self.timed_out:
            return "the agent was stopped at the time limit of its task"
        ended = f"exit code {self.code}" if self.code >= 0 else f"signal {-self.code}"
        reason = f": {self.last_lines[-1].strip()}" if self.last_lines else ", and printed nothing"
        return f"the agent failed with {ended}{reason}"


def last_lines(log: Path) -> tuple[str, ...]:
    """Return the last lines of a log. Empty if the log does not exist."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LAST_BYTES))
            return lines_at_end(file.read())
    except OSError:
        return ()


SECONDS_TO_START = 120.0


class FunctionRunner:
    """Starts an agent's function through a `fork_server`, which it starts on first use, and again after it has died."""

    def __init__(self, target: Target, directory: Path) -> None:
        """Start nothing yet. Logs are written to `directory`."""
        path = json.dumps([*sys.path, os.getcwd()] if "" not in sys.path else sys.path)  # noqa: PTH109
        server = [sys.executable, "-P", "-m", "rllm_gateway.running.fork_server"]
        self._program = [*server, target.module, target.function, path]
        self._target = target
        self._directory = directory
        self._numbers = count()
        self._running: dict[int, asyncio.Future[int]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    def reward_source(self, task: Mapping[str, Any]) -> RewardSource:
        """Return ``agent``, because the function returns its reward, or sends it."""
        return "agent"

    async def run(self, task: Mapping[str, Any], environment: Mapping[str, str], reward_key: str = "") -> Outcome:
        """Run the agent to its end. If this is cancelled, kill the agent and all processes that it has started.

        Raises:
            PluginError: no process can be started.
            RolloutError: the process that starts agents has died.
        """
        number = next(self._numbers)
        log, result = self._directory / f"{number}.log", self._directory / f"{number}.json"
        order = {"environment": dict(environment), "task": dict(task), "log": str(log), "result": str(result)}
        try:
            code = await self._wait_for_end(number, {**order, "reward_key": reward_key})
            returned = json.loads(result.read_bytes()) if code == 0 and result.exists() else None
            return Outcome(code, returned, last_lines(log))
        finally:
            for file in (log, result, partial_result(result)):
                file.unlink(missing_ok=True)

    async def _wait_for_end(self, number: int, order: Mapping[str, Any]) -> int:
        """Return the exit code of an agent after its end."""
        process = await self._find_process()
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
            await _end(self._process)
        if self._reading is not None:
            await asyncio.wait({self._reading})

    async def _find_process(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                self._process = await self._start()
                self._reading = asyncio.create_task(self._read(self._process), name="rllm-agents")
            return self._process

    async def _start(self) -> asyncio.subprocess.Process:
        errors = self._directory / "agent_server.log"
        with errors.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *supervise_command(self._program),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                # Ctrl-C is for the run, which finishes its step first.
                start_new_session=True,
            )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(SECONDS_TO_START):
                greeting = await process.stdout.readline()
        except TimeoutError:
            greeting = b""
        if greeting.strip() != b"ready":
            await _end(process)
            why = " | ".join(last_lines(errors)) or "it printed nothing"
            raise PluginError(
                "agent-not-started",
                f"The process that starts the agent {self._target} does not start: {why}.",
                "Import the agent's file in Python to see the error.",
            )
        return process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            report = json.loads(line)
            future = self._running.get(report["ended"])
            if future is not None and not future.done():
                future.set_result(report["code"])
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


class CommandRunner:
    """Starts a program for every rollout."""

    def __init__(self, command: Sequence[str], directory: Path) -> None:
        """Start nothing yet. Logs are written to `directory`."""
        self._command = list(command)
        self._directory = directory
        self._numbers = count()

    def reward_source(self, task: Mapping[str, Any]) -> RewardSource:
        """Return ``program``, because commands of the model may also write to its output."""
        return "program"

    async def run(self, task: Mapping[str, Any], environment: Mapping[str, str], reward_key: str = "") -> Outcome:
        """Run the program to its end. If this is cancelled, kill the program and all processes that it has started.

        The program's result is the last line of its standard output, if that line is a JSON object with ``reward`` or
        ``answer``, and if the program ends with exit code 0. The program does not receive the reward key.

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
                    with contextlib.suppress(PluginError):  # No program was started.
                        await _end(await starting)
                    raise
            try:
                await process.communicate(json.dumps(dict(task)).encode())
            finally:
                await _end(process)
            printed = last_lines(output)
            assert process.returncode is not None
            result = parse_result(printed) if process.returncode == 0 else None
            return Outcome(process.returncode, result, last_lines(log) or printed)
        finally:
            log.unlink(missing_ok=True)
            output.unlink(missing_ok=True)

    async def close(self) -> None:
        """Do nothing, because programs end with their rollouts."""

    async def _start(self, environment: Mapping[str, str], output: Any, errors: Any) -> asyncio.subprocess.Process:
        variables = {**os.environ, **environment}
        try:
            if shutil.which(self._command[0], path=variables.get("PATH")) is None:
                raise FileNotFoundError("it is not a program")
            return await asyncio.create_subprocess_exec(
                *supervise_command(self._command),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=errors,
                env=variables,
                start_new_session=True,
            )
        except OSError as error:
            raise PluginError(
                "agent-not-started",
                f"{self._command[0]} cannot be started: {error}.",
                "Set rllm.workflow.workflow_args.command to a program that starts, for example [python,my_program.py].",
            ) from error


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill a program, and all processes that it has started."""
    if process.returncode is None:
        end_supervised_command(process.pid)
    await process.wait()


def parse_result(lines: Sequence[str]) -> Any:
    """Return the JSON object in the last line, if it is a result. Other output is not a result."""
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return found if isinstance(found, Mapping) and found.keys() & {"reward", "answer"} else None
