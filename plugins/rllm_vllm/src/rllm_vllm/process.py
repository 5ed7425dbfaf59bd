"""Start the process that runs vLLM, and send requests to it."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

from rllm_core.errors import BackendError, UnsupportedSamplingError
from rllm_serving.child_process import ChildProcess
from rllm_serving.connection import PICKLE, Connection
from rllm_vllm.cpu_linear import SWITCH
from rllm_vllm.messages import Body, Failure, Unsupported

RESUME = "Continue from the newest checkpoint with --resume."


class ServerProcess:
    """A process of `rllm_vllm.server`, with all processes that it starts."""

    def __init__(self, process: ChildProcess, end: socket.socket) -> None:
        self._process = process
        self._end = end
        self._connection: Connection | None = None

    @classmethod
    def spawn(cls, directory: Path, threads: int) -> ServerProcess:
        """Start a process. Its log is a file in `directory`."""
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
        """Process id, which is also the id of its process group."""
        return self._process.pid

    async def connect(self) -> None:
        """Connect to the process and start to read its answers."""
        self._connection = await Connection.open(self._end, PICKLE)

    async def ask(self, body: Body, action: str, *, within: float, option: str) -> Any:
        """Return the answer to a request.

        Args:
            body: the request.
            action: its description for errors.
            within: time limit in seconds.
            option: name of the option that sets `within`.

        Raises:
            UnsupportedSamplingError: vLLM cannot constrain the response to the request's JSON schema.
            BackendError: the request failed, the process ended, or the deadline passed.
        """
        assert self._connection is not None
        try:
            answer = await self._connection.ask(body, within)
        except TimeoutError as error:
            raise BackendError(
                "process-timeout",
                f"{action} has taken more than {within:g} s, the engine's option {option}.",
                f"Increase {option}.",
                self._process.log_tail(),
            ) from error
        except EOFError as error:
            raise BackendError(
                "process-died", f"{action}: vLLM's process has ended.", RESUME, self._process.log_tail()
            ) from error
        if isinstance(answer, Unsupported):
            raise UnsupportedSamplingError(answer.code, answer.message, answer.hint)
        if isinstance(answer, Failure):
            raise BackendError(
                "worker-failed", f"{action} failed: {answer.what.rstrip('.')}.", details=self._process.log_tail()
            )
        return answer

    async def close(self, within: float) -> None:
        """Close the connection, which ends the process. Kill its group after `within` seconds."""
        if self._connection is None:
            self._end.close()
        else:
            await self._connection.close()
        await self._process.end(within)
