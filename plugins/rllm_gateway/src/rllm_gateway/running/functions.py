"""Runs an agent's function, each attempt in a process of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllm_gateway.running.agent_server import AgentServer
from rllm_gateway.running.outcome import Outcome, last_lines
from rllm_gateway.running.target import Target


class FunctionRunner:
    """Starts agents through a `fork_server`."""

    def __init__(self, target: Target, folder: Path) -> None:
        """Start nothing yet; logs lie in `folder`."""
        path = json.dumps([*sys.path, os.getcwd()] if "" not in sys.path else sys.path)  # noqa: PTH109
        program = [sys.executable, "-P", "-m", "rllm_gateway.running.fork_server"]
        remedy = "Import the agent's file in Python to see the error."
        self._server = AgentServer([*program, target.place, target.function, path], str(target), folder, remedy)
        self._folder = folder

    async def run(self, task: Mapping[str, Any], environment: Mapping[str, str]) -> Outcome:
        """Run the agent to its end. Cancelled, it kills the agent and all that this has started.

        Raises:
            PluginError: no process can be started.
            RolloutError: the process that starts agents has died.
        """
        number = self._server.new_number()
        log, result = self._folder / f"{number}.log", self._folder / f"{number}.json"
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
