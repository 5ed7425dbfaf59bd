"""The tests' side of `command_server.py`: forked processes with the interface of `subprocess`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from rllm_serving.child_process import ChildProcess

SCRIPT = Path(__file__).with_name("command_server.py")
BETWEEN_LOOKS = 0.02
"""Seconds."""
LONGEST_ANSWER = 100
"""Bytes."""
SPAWN = ChildProcess.spawn
TRAINING = "rllm_local.training_child"
"""Module of the children that import torch and transformers."""


@dataclass(eq=False)
class ForkedProcess:
    """A command that runs or ran, with the members of `subprocess.Popen` that tests use."""

    server: CommandServer
    args: list[str]
    pid: int
    output: Path
    """Directory of the files that replace its pipes."""
    returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.server.ask("status", self.pid)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        # Wait only after its end was seen, so that no other process gets its id.
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 200) -> tuple[str, str]:
        """Wait for its end, and return its stdout and stderr."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout, *self._read_output())
            time.sleep(BETWEEN_LOOKS)
        return self._read_output()

    def _read_output(self) -> tuple[str, str]:
        return (self.output / "stdout").read_text(), (self.output / "stderr").read_text()


@dataclass(eq=False)
class CommandServer:
    """The forking process, started by `running`, or by a forked command for its own children."""

    channel: socket.socket
    directory: Path
    """Directory of the files that processes write to."""
    started: list[ForkedProcess] = field(default_factory=list)

    def ask(self, name: str, value: Any, descriptors: Sequence[int] = ()) -> Any:
        """Send a request, with descriptors that a process inherits, and return the answer."""
        socket.send_fds(self.channel, [json.dumps({name: value}).encode()], descriptors)
        answer = self.channel.recv(LONGEST_ANSWER)
        assert answer, "the command server has ended; its output is above"
        return json.loads(answer)

    def start(self, module: str, words: Sequence[str], directory: Path, environ: dict[str, str]) -> ForkedProcess:
        """Start `python -m MODULE WORDS` in a directory."""
        output = self.directory / str(len(self.started))
        output.mkdir()
        files = {name: str(output / name) for name in ("stdout", "stderr")}
        command = {"module": module, "words": list(words), "directory": str(directory), "environ": environ, **files}
        return self._start(command, output)

    def spawn(
        self, arguments: Sequence[str], log: Path, environment: Mapping[str, str], inherited: Sequence[int] = ()
    ) -> ChildProcess:
        """Start a child as `ChildProcess.spawn` does, except that a training process is a fork of the server."""
        if TRAINING not in arguments:
            return SPAWN(arguments, log, environment, inherited)
        _, *options, module = arguments[: arguments.index(TRAINING) + 1]
        command_end, stdin = os.pipe()
        command = {
            "module": module,
            "words": arguments[len(options) + 2 :],
            "directory": str(Path.cwd()),
            "environ": {**os.environ, **environment},
            "safe_path": "-P" in options,
            "descriptors": [0, 1, 2, *inherited],
        }
        with log.open("wb") as output:
            forked = self._start(command, log.parent, [command_end, output.fileno(), output.fileno(), *inherited])
        os.close(command_end)
        return ChildProcess(ForkedChild(forked, os.fdopen(stdin, "wb")), log)  # type: ignore[arg-type]

    def _start(self, command: dict[str, Any], output: Path, descriptors: Sequence[int] = ()) -> ForkedProcess:
        pid = self.ask("start", command, descriptors)
        self.started.append(ForkedProcess(self, [command["module"], *command["words"]], pid, output))
        return self.started[-1]


@dataclass(eq=False)
class ForkedChild:
    """Members of `subprocess.Popen` that `ChildProcess` uses."""

    process: ForkedProcess
    stdin: BinaryIO

    @property
    def pid(self) -> int:
        return self.process.pid

    def poll(self) -> int | None:
        return self.process.poll()

    def wait(self, timeout: float = 200) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.process.args, timeout)
            time.sleep(BETWEEN_LOOKS)
        return code


@contextmanager
def running(directory: Path) -> Iterator[CommandServer]:
    """Yield a server that stores its processes' output in `directory`. It ends with all of them."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = [sys.executable, "-W", "error", str(SCRIPT), str(theirs.fileno())]
    with subprocess.Popen(words, env=environ, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL) as process, ours:
        theirs.close()
        server = CommandServer(ours, directory)
        try:
            yield server
        finally:
            if process.poll() is None:
                for forked in server.started:
                    forked.kill()
                    while forked.poll() is None:
                        time.sleep(BETWEEN_LOOKS)
