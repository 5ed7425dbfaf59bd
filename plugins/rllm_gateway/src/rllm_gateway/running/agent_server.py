"""A process that starts agents, seen from the run; `forking.py` is the other side."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from rllm_core.errors import PluginError, RolloutError
from rllm_gateway.running.outcome import last_lines

SECONDS_TO_START = 120.0


class AgentServer:
    """Sends orders to a process that starts agents. It starts the process on first use, and again after it has died."""

    def __init__(self, program: Sequence[str], agent: str, folder: Path, remedy: str) -> None:
        """Start nothing yet.

        Args:
            program: the words that start the process.
            agent: the agent's name, for errors.
            folder: directory for the process's log.
            remedy: the last line of the error if the process does not start.
        """
        self._program = list(program)
        self._agent = agent
        self._folder = folder
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
                # It kills its agents when its input ends; a kill would leave theirs.
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
        errors = self._folder / "agent_server.log"
        with errors.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *self._program,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                # Ctrl-C is for the run, which ends its step first.
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
            why = " | ".join(last_lines(errors)) or "it says nothing"
            raise PluginError(f"The process that starts the agent {self._agent} does not start: {why}.", self._remedy)
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
                        "The process that starts agents has died.",
                        "The system may have killed it because memory ran out. Run `dmesg` to check.",
                    )
                )


def _send(process: asyncio.subprocess.Process, order: Mapping[str, Any]) -> None:
    if process.stdin is not None and not process.stdin.is_closing():
        process.stdin.write(json.dumps(order).encode() + b"\n")
