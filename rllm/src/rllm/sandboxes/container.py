"""The sandboxes `docker` and `podman`: a container for each sandbox, controlled by the program's command line.

The first program in the container (`HOLD`) waits for lines on its standard input, and kills all other processes at each
line. So no process stays after its command, also if the container has no space for a new process. If this process
dies, its standard input ends, and with it the container, which is then removed.

The container has no network. For a command with a port, `container_port` listens there and forwards the connections
to a Unix socket in a directory that the container shares with this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from rllm.sandboxes import container_port
from rllm.sandboxes.archives import ArchiveSandbox
from rllm.sandboxes.forwarding import connect
from rllm.sandboxes.options import ContainerParams
from rllm.sandboxes.process import SECONDS_TO_END, kill_group, run_program
from rllm_core.contracts.sandbox import CommandResult, SandboxSetup
from rllm_core.errors import PluginError

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
PROCESSES_OF_OURS = 8
SECONDS_BETWEEN_KILLS = 0.2


class ContainerSandbox(ArchiveSandbox):
    """A process ``docker run`` or ``podman run``, and the commands in its container."""

    def __init__(self, program: str, name: str, holder: asyncio.subprocess.Process, shared: Path) -> None:
        self._program = program
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
        for variable, value in {"SANDBOX_ROOT": "", **(environment or {})}.items():
            arguments += ["--env", f"{variable}={value}"]
        arguments.append(self._name)
        if port is not None:
            arguments += ["python3", "-I", "-S", f"{SHARED}/{FORWARDER}", f"{SHARED}/{SOCKET}", str(port)]
        async with contextlib.AsyncExitStack() as stack:
            if port is not None:
                server = await asyncio.start_unix_server(partial(connect, port=port), self._shared / SOCKET)
                stack.callback(server.close)
                (self._shared / SOCKET).chmod(0o666)  # The user of the container may be a different one.
            return await run_program(
                [*arguments, *command], seconds=seconds, stdin=stdin, environment=os.environ, end=self._end
            )

    async def stop(self) -> None:
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        try:
            async with asyncio.timeout(SECONDS_TO_END):
                await self._holder.wait()
        except TimeoutError:
            await run_program(
                [self._program, "rm", "--force", self._name], seconds=60.0, stdin=b"", environment=os.environ
            )
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
    arguments = [program, "run", "--rm", "--interactive", "--init", "--name", name, *ISOLATED]
    arguments += ["--memory", str(setup.memory), "--memory-swap", str(setup.memory)]
    arguments += ["--pids-limit", str(setup.processes + PROCESSES_OF_OURS), "--ulimit", f"fsize={setup.disk}"]
    for path in (*(Path(each).expanduser().absolute() for each in params.readable), *setup.readable):
        arguments += ["--volume", f"{path}:{path}:ro"]
    arguments += ["--volume", f"{shared}:{SHARED}:ro", *params.arguments]
    pipe = asyncio.subprocess.PIPE
    holder = await asyncio.create_subprocess_exec(
        *arguments,
        *("--entrypoint", "sh", params.image, "-c", HOLD),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
    )
    assert holder.stdout is not None and holder.stderr is not None
    if await holder.stdout.readline() != b"ready\n":
        reason = (await holder.stderr.read()).decode(errors="replace").strip()
        await holder.wait()
        shutil.rmtree(shared)
        raise PluginError(
            "sandbox-failed",
            f"{program} cannot start a container of {params.image}: {reason}",
            f"Run `{program} run --rm {params.image} true` to see the reason, and run fewer rollouts.",
        )
    return ContainerSandbox(program, name, holder, shared)


start_docker = partial(_start, "docker")
start_podman = partial(_start, "podman")
