"""Runs an agent's function, each attempt in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from rllm_core.errors import PluginError, RolloutError
from rllm_gateway.running.outcome import Outcome, last_lines
from rllm_gateway.running.target import Target

SECONDS_TO_START = 120.0


class FunctionRunner:
    """Starts agents through a `fork_server`, which is started when it is needed and again when it has died."""

    def __init__(self, target: Target, folder: Path) -> None:
        """Start nothing yet; logs lie in `folder`."""
        self._target = target
        self._folder = folder
        self._numbers = count()
        self._running: dict[int, asyncio.Future[int]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def run(self, task: Mapping[str, Any], environment: Mapping[str, str]) -> Outcome:
        """Run the agent to its end. Cancelled, it kills the agent and all that this has started.

        Raises:
            PluginError: no process can be started.
            RolloutError: the process that starts agents has died.
        """
        process = await self._started()
        number = next(self._numbers)
        log, result = self._folder / f"{number}.log", self._folder / f"{number}.json"
        order = {
            "start": number,
            "environment": dict(environment),
            "task": dict(task),
            "log": str(log),
            "result": str(result),
        }
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._running[number] = future
        _send(process, order)
        try:
            code = await future
            returned = json.loads(result.read_bytes()) if result.exists() else None
            return Outcome(code, returned, last_lines(log))
        except asyncio.CancelledError:
            _send(process, {"kill": number})
            raise
        finally:
            self._running.pop(number, None)
            log.unlink(missing_ok=True)
            result.unlink(missing_ok=True)

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
        errors = self._folder / "fork_server.log"
        path = json.dumps([*sys.path, os.getcwd()] if "" not in sys.path else sys.path)  # noqa: PTH109
        program = [sys.executable, "-P", "-m", "rllm_gateway.running.fork_server"]
        with errors.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *program,
                self._target.place,
                self._target.function,
                path,
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
        if said.strip() != b"ready":
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            why = " | ".join(last_lines(errors)) or "it says nothing"
            raise PluginError(
                f"The process that starts the agent {self._target} does not start: {why}.",
                "Import its file in Python to see why.",
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
                        "The process that starts agents has died.",
                        "The system may have killed it for memory (`dmesg` tells).",
                    )
                )


def _send(process: asyncio.subprocess.Process, order: Mapping[str, Any]) -> None:
    if process.stdin is not None and not process.stdin.is_closing():
        process.stdin.write(json.dumps(order).encode() + b"\n")
