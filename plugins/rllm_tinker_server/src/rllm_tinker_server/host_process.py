"""A `Host` that trains in a child process, so that training does not share Python's global lock with sampling and HTTP.

`host_child` is the other end.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rllm_core.errors import BackendError
from rllm_local.child_log import ChildLog
from rllm_local.settings import TrainedModelSection
from rllm_serving.child_process import ChildProcess
from rllm_serving.connection import PICKLE, Connection
from rllm_serving.methods import result_of
from rllm_tinker_server.host import Host
from rllm_tinker_server.lora import AdapterWeights
from rllm_tinker_server.messages import AdamStep, ForwardBackward, ForwardBackwardResult, LoraSpec

SECONDS_TO_END = 10.0
"""Seconds that the process gets to end after its connection is closed. Normally it ends at once."""
LOG_LINES = 15
"""Number of lines from the end of its output that an error shows."""


class HostProcess:
    """The training methods of a `Host`, in a child process that ends with this process. Use it on one thread."""

    def __init__(
        self, host: Host, *, threads: int, section: TrainedModelSection, seed: int, settings: Mapping[str, Any]
    ) -> None:
        """Start the process, and load the model there.

        Args:
            host: a host of this process with the same base model. It loads weights to sample from.
            threads: CPU threads of torch.
            section: the base model.
            seed: seed of the weights of `tiny`.
            settings: arguments of `Host`.

        Raises:
            BackendError: the process ended.
        """
        self.base = host.base
        self.load_weights = host.load_weights
        ours, theirs = socket.socketpair()
        # -P: do not import modules from the current folder.
        program = [sys.executable, "-P", "-m", "rllm_tinker_server.host_child", str(theirs.fileno())]
        # The folder is deleted at once, so that a killed process leaves no folder. Both ends keep the log open.
        with theirs, tempfile.TemporaryDirectory(prefix="rllm-tinker-training-") as directory:
            log = Path(directory) / "training.log"
            self._process = ChildProcess.spawn(program, log, {"PYTHONFAULTHANDLER": "1"}, [theirs.fileno()])
            self._log = ChildLog(log)
        # The thread that calls the methods waits for answers, so it runs the connection's event loop.
        self._runner = asyncio.Runner()
        self._connection: Connection = self._runner.run(Connection.open(ours, PICKLE))
        self._failure: BackendError | None = None
        try:
            self._call("start", sys.path, threads, section, seed, settings)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def create(self, model_id: str, spec: LoraSpec) -> None:
        self._call("create", model_id, spec)

    def forward_backward(self, model_id: str, request: ForwardBackward) -> ForwardBackwardResult:
        result: ForwardBackwardResult = self._call("forward_backward", model_id, request)
        return result

    def optim_step(self, model_id: str, step: AdamStep) -> dict[str, float]:
        metrics: dict[str, float] = self._call("optim_step", model_id, step)
        return metrics

    def save_state(self, model_id: str, directory: Path, *, optimizer: bool) -> None:
        self._call("save_state", model_id, directory.absolute(), optimizer)

    def load_state(self, model_id: str, directory: Path, *, optimizer: bool) -> None:
        self._call("load_state", model_id, directory.absolute(), optimizer)

    def weights(self, model_id: str) -> AdapterWeights:
        spec, factors = self._call("weights", model_id)
        return AdapterWeights(spec=spec, factors=MappingProxyType(factors))

    def release(self, model_id: str) -> None:
        # If the process has ended, its models are gone, and clients can still close their sessions.
        with contextlib.suppress(BackendError):
            self._call("release", model_id)

    def kill(self) -> None:
        """Kill the process. A method that waits for it on another thread raises an error."""
        self._process.kill()

    def close(self) -> None:
        """Stop the process. No method may be running."""
        self._runner.run(self._connection.close())
        self._runner.run(self._process.end(SECONDS_TO_END))
        self._runner.close()
        self._log.close()

    def _call(self, name: str, *arguments: object) -> Any:
        """Return a method's result. Raise the method's error, or BackendError if the process has ended."""
        if self._failure is not None:
            raise self._failure
        try:
            answer = self._runner.run(self._connection.ask((name, *arguments)))
        except EOFError:
            self._failure = self._how_it_ended(name)
            raise self._failure from None
        self._log.tell()
        return result_of(answer, "the training process")

    def _how_it_ended(self, name: str) -> BackendError:
        self._runner.run(self._process.end(SECONDS_TO_END))
        code = self._process.exit_code or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        lines = self._log.last_lines(LOG_LINES)
        return BackendError(
            "process-died",
            f"The server's training process {how} in {name!r}, so its models are lost.",
            "Restart `rllm tinker serve`, and continue from the last checkpoint.",
            "\n".join(["The last lines of its output:", *lines]) if lines else "",
        )
