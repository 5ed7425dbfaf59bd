"""The sandboxes `docker` and `podman`: a container for each sandbox, controlled by the program's command line.

The first program in the container (`HOLD`) waits for lines on its standard input, and kills all other processes at each
line. So no process stays after its command, also if the container has no space for a new process. If this process
dies, its standard input ends, and with it the container, which is then removed.

An untrusted command gets its own container of the same image. Both share ``/app``, which is a volume.

The container has no network. For a command with a port, `container_port` listens there and forwards the connections
to a Unix socket in a directory that the container shares with this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import Field

from rllm.builtin.sandboxes import container_port
from rllm.builtin.sandboxes.isolated import IsolatedSandbox, connect, readable_paths, start_holder
from rllm.builtin.sandboxes.process import SECONDS_TO_END, kill_group, run_program
from rllm_core.contracts.params import Params
from rllm_core.contracts.sandbox import CommandResult, SandboxSetup
from rllm_core.errors import ConfigError, PluginError


class ContainerParams(Params):
    """Options of the sandboxes ``docker`` and ``podman``."""

    image: str = "python:3.12"
    """Image of the containers. It needs sh, find, tar, bash for tests, and python3 for agents. It is pulled if this
    machine has none."""
    arguments: list[str] = Field(default_factory=list)
    """More arguments of `docker run` or `podman run`, such as [--storage-opt, size=1G]."""
    readable: list[str] = Field(default_factory=list)
    """Directories of this machine that commands may read, under the same path."""


def check_container(program: str, params: ContainerParams) -> None:
    """Check that ``docker`` or ``podman`` is installed, and that it can start containers.

    Raises:
        ConfigError: the program is missing, or its daemon does not answer.
    """
    if shutil.which(program) is None:
        raise ConfigError(
            "sandbox-unavailable",
            f"Sandbox {program} needs the program {program}, which is not installed.",
            "Install it, or use --sandbox bwrap, which needs no daemon.",
        )
    trial = subprocess.run([program, "info"], capture_output=True, text=True, check=False)
    if trial.returncode:
        raise ConfigError(
            "sandbox-unavailable",
            f"Sandbox {program} cannot start containers here: {trial.stderr.strip()[-200:]}",
            f"Run `{program} info` until it succeeds, or use --sandbox bwrap, which needs no daemon.",
        )


SHARED = "/run/rllm"
SOCKET, FORWARDER = "gateway.sock", "container_port.py"
HOLD = """
mkdir -p /app /logs /tests && echo ready || exit
while read -r line; do kill -9 -1; echo ended; done
"""
ISOLATED = [
    *("--network", "none", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
    # Otherwise SELinux hides the shared directory.
    *("--security-opt", "label=disable"),
]
OF_CLIENTS = ("HOME", "PATH", "TMPDIR", "LD_", "XDG_", "DOCKER_", "CONTAINER_")
"""Environment variables that the client reads itself, so it receives their values as arguments. It passes on all others
by name, because other users of the machine can read arguments."""
PROCESSES_OF_OURS = 8
SECONDS_BETWEEN_KILLS = 0.2


@dataclass(frozen=True)
class _Start:
    """The options of all containers of a sandbox."""

    program: str
    params: ContainerParams
    setup: SandboxSetup

    def run_command(self, name: str, volumes: Sequence[str]) -> list[str]:
        """Return the command that starts a container, up to its entry point and image."""
        setup = self.setup
        command = [self.program, "run", "--rm", "--interactive", "--init", "--name", name, *ISOLATED]
        command += ["--memory", str(setup.memory), "--memory-swap", str(setup.memory)]
        command += ["--pids-limit", str(setup.processes + PROCESSES_OF_OURS), "--ulimit", f"fsize={setup.disk}"]
        return [*command, *volumes, *self.params.arguments]


class ContainerSandbox(IsolatedSandbox):
    """A process ``docker run`` or ``podman run``, and the commands in its container."""

    def __init__(self, start: _Start, name: str, holder: asyncio.subprocess.Process, shared: Path) -> None:
        self._start = start
        self._program = start.program
        self._name = name
        self._holder = holder
        self._shared = shared

    async def run(
        self,
        command: Sequence[str],
        *,
        seconds: float,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        port: int | None = None,
    ) -> CommandResult:
        arguments = [self._program, "exec", "--interactive", "--workdir", "/app"]
        variables = {"SANDBOX_ROOT": "", **(environment or {})}
        hidden = {name: value for name, value in variables.items() if not name.startswith(OF_CLIENTS)}
        for name, value in variables.items():
            arguments += ["--env", name if name in hidden else f"{name}={value}"]
        arguments.append(self._name)
        if port is not None:
            arguments += ["python3", "-I", "-S", f"{SHARED}/{FORWARDER}", f"{SHARED}/{SOCKET}", str(port)]
        async with contextlib.AsyncExitStack() as stack:
            if port is not None:
                server = await asyncio.start_unix_server(partial(connect, port=port), self._shared / SOCKET)
                stack.callback(server.close)
                (self._shared / SOCKET).chmod(0o666)  # The user of the container may be a different one.
            return await run_program(
                [*arguments, *command], seconds=seconds, stdin=stdin, environment=os.environ | hidden, end=self._end
            )

    async def run_untrusted(self, command: Sequence[str], *, seconds: float, stdin: bytes = b"") -> CommandResult:
        name = f"{self._name}-{secrets.token_hex(4)}"
        # `timeout` ends the container also if this process has died.
        entry, *rest = "timeout", "-s", "KILL", str(math.ceil(seconds)), *command
        inside = ["--workdir", "/app", "--env", "SANDBOX_ROOT="]
        shared = ["--volumes-from", self._name]

        async def end(process: asyncio.subprocess.Process) -> None:
            if process.returncode is None:
                await self._remove(name)
                await kill_group(process)

        return await run_program(
            [*self._start.run_command(name, shared), *inside, "--entrypoint", entry, self._start.params.image, *rest],
            seconds=seconds,
            stdin=stdin,
            environment=os.environ,
            end=end,
        )

    async def stop(self) -> None:
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        try:
            async with asyncio.timeout(SECONDS_TO_END):
                await self._holder.wait()
        except TimeoutError:
            await self._remove(self._name)
            await kill_group(self._holder)
            await self._holder.wait()
        await asyncio.to_thread(shutil.rmtree, self._shared)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Kill all processes of the container, until the command has ended. It may still be starting."""
        ended = asyncio.ensure_future(process.wait())
        try:
            async with asyncio.timeout(SECONDS_TO_END):
                while await self._kill() and not ended.done():
                    await asyncio.wait([ended], timeout=SECONDS_BETWEEN_KILLS)
                await ended
        except TimeoutError:
            await kill_group(process)

    async def _remove(self, name: str) -> None:
        command = [self._program, "rm", "--force", "--volumes", name]
        await run_program(command, seconds=60.0, stdin=b"", environment=os.environ)

    async def _kill(self) -> bool:
        """Kill all processes of the container. Return False if the container has ended."""
        assert self._holder.stdin is not None and self._holder.stdout is not None
        with contextlib.suppress(ConnectionError):
            self._holder.stdin.write(b"end\n")
            await self._holder.stdin.drain()
        return await self._holder.stdout.readline() == b"ended\n"


async def _start(program: str, params: ContainerParams, setup: SandboxSetup) -> ContainerSandbox:
    """Start the container of a sandbox.

    Raises:
        PluginError: the container cannot be started.
    """
    name = f"rllm-{secrets.token_hex(8)}"
    shared = Path(tempfile.mkdtemp(prefix="rllm-sandbox-"))
    shared.chmod(0o755)
    shutil.copyfile(container_port.__file__, shared / FORWARDER)
    start = _Start(program, params, setup)
    paths = readable_paths(params.readable, setup)
    volumes = [*(f"{path}:{path}:ro" for path in paths), f"{shared}:{SHARED}:ro", "/app"]
    holder, reason = await start_holder(
        *start.run_command(name, [word for volume in volumes for word in ("--volume", volume)]),
        *("--entrypoint", "sh", params.image, "-c", HOLD),
    )
    if reason is not None:
        shutil.rmtree(shared)
        raise PluginError(
            "sandbox-failed",
            f"{program} cannot start a container of {params.image}: {reason}",
            f"Run `{program} run --rm {params.image} true` to see the reason, and run fewer rollouts.",
        )
    return ContainerSandbox(start, name, holder, shared)


start_docker = partial(_start, "docker")
start_podman = partial(_start, "podman")
