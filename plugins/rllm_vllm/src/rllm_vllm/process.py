"""The process that runs vLLM, seen from outside: in a process group of its own, with a log, and ended for sure."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from rllm_vllm.cpu_linear import SWITCH

LOG_LINES = 15
"""Last lines of the log that an error shows."""
PAUSE = 0.05


class ServerProcess:
    """One `rllm_vllm.server` and everything that it starts."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket, log: Path) -> None:
        self.connection = connection
        """Our end of the socket."""
        self._process = process
        self._log = log

    @classmethod
    def spawn(cls, folder: Path, threads: int) -> ServerProcess:
        """Start one; its log is a file in `folder`."""
        log = folder / "vllm.log"
        ours, theirs = socket.socketpair()
        environment = os.environ | {
            SWITCH: "1",
            "OMP_NUM_THREADS": str(threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
        }
        with theirs, log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "rllm_vllm.server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                env=environment,
                start_new_session=True,
            )
        return cls(process, ours, log)

    @property
    def pid(self) -> int:
        """Also the id of its process group."""
        return self._process.pid

    def log_tail(self) -> str:
        """The last lines it wrote, for an error."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(["Last lines of vLLM's log:", *lines[-LOG_LINES:]]) if lines else "Its log is empty."

    async def end(self, within: float) -> None:
        """Wait until it has ended by itself, since its socket is closed; kill the whole group when it does not."""
        given_up = time.monotonic() + within
        while self._process.poll() is None and time.monotonic() < given_up:
            await asyncio.sleep(PAUSE)
        self.kill()

    def kill(self) -> None:
        """End every process of the group at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
