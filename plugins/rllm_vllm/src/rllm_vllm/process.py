"""The process that runs vLLM, seen from outside."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from rllm_serving.child_process import ChildProcess
from rllm_vllm.cpu_linear import SWITCH

LOG_LINES = 15
"""Last lines of the log that an error shows."""


class ServerProcess:
    """One `rllm_vllm.server` and everything that it starts."""

    def __init__(self, process: ChildProcess, connection: socket.socket) -> None:
        self.connection = connection
        """Our end of the socket."""
        self._process = process

    @classmethod
    def spawn(cls, directory: Path, threads: int) -> ServerProcess:
        """Start one; its log is a file in `directory`."""
        ours, theirs = socket.socketpair()
        environment = {
            SWITCH: "1",
            "OMP_NUM_THREADS": str(threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
        }
        with theirs:
            descriptor = theirs.fileno()
            program = [sys.executable, "-m", "rllm_vllm.server", str(descriptor)]
            process = ChildProcess.spawn(program, directory / "vllm.log", environment, [descriptor])
        return cls(process, ours)

    @property
    def pid(self) -> int:
        """Also the id of its process group."""
        return self._process.pid

    def log_tail(self) -> str:
        """The last lines it wrote, for an error."""
        lines = self._process.last_lines(LOG_LINES)
        return "\n".join(["Last lines of vLLM's log:", *lines]) if lines else "Its log is empty."

    async def end(self, within: float) -> None:
        """Wait until it has ended by itself, since its socket is closed; kill the whole group when it does not."""
        await self._process.end(within)
