"""The sandboxes `docker` and `podman` with a program that imitates both, their programs and their connections."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error
from fake_container import calls, write_fake_program
from programs import needs_program

from rllm.builtin.sandboxes import container
from rllm.builtin.sandboxes.container import ContainerParams, ContainerSandbox, check_container
from rllm.builtin.sandboxes.isolated import connect as connect_port, forward
from rllm.builtin.sandboxes.process import run_program
from rllm_core.contracts.sandbox import CommandResult, SandboxSetup
from rllm_core.errors import ConfigError, PluginError

from .ports import ONLY_THE_PORT, SECONDS, connect

PROGRAMS = ("docker", "podman")
NO_BWRAP = needs_program("bwrap")
SETUP = SandboxSetup(memory=1 << 28, disk=1 << 20, processes=24, readable=(Path("/usr/share"),))


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The program that imitates it, first on PATH."""
    write_fake_program(tmp_path, request.param)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return str(request.param)


def use(program: str, act: Callable[[ContainerSandbox], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        start = getattr(container, f"start_{program}")
        sandbox: ContainerSandbox = await start(ContainerParams(**options), SETUP)
        try:
            return await act(sandbox)
        finally:
            await sandbox.stop()

    return asyncio.run(run())


def test_command_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    lines = ['printf "%s\\n" "$@" > "${0%/*}/$1.txt"', 'test "$1" = exec && exit 3', "echo ready"]
    lines += ["while read -r line; do echo ended; done"]
    (tmp_path / program).write_text("\n".join(("#!/bin/sh", *lines)))

    async def act(sandbox: ContainerSandbox) -> CommandResult:
        variables = {"A": "b c", "HOME": "/tests"}
        return await sandbox.run(["my-agent", "--task", "x"], seconds=SECONDS, environment=variables, port=8000)

    result = use(program, act, image="my-image:1", arguments=["--gpus", "all"], readable=["/opt"])
    assert result.exit_code == 3
    run = (tmp_path / "run.txt").read_text().splitlines()
    name = run[run.index("--name") + 1]
    shared = next(word for word in run if word.endswith(":/run/rllm:ro"))
    expected = f"run --rm --interactive --init --name {name} --network none --cap-drop ALL --security-opt "
    expected += "no-new-privileges --security-opt label=disable --memory 268435456 --memory-swap 268435456 "
    expected += "--pids-limit 32 --ulimit fsize=1048576 --volume /opt:/opt:ro --volume /usr/share:/usr/share:ro "
    expected += f"--volume {shared} --volume /app --gpus all --entrypoint sh my-image:1 -c"
    assert run[: len(expected.split())] == expected.split()
    assert not Path(shared.split(":")[0]).exists()
    start = "python3 -I -S /run/rllm/container_port.py /run/rllm/gateway.sock 8000"
    # Other users of the machine can read a command line, so values are passed in the environment.
    words = f"exec --interactive --workdir /app --env SANDBOX_ROOT --env A --env HOME=/tests {name} {start} "
    assert (tmp_path / "exec.txt").read_text().splitlines() == [*words.split(), "my-agent", "--task", "x"]


def test_container_that_does_not_start_is_an_error(tmp_path: Path, program: str) -> None:
    (tmp_path / program).write_text("#!/bin/sh\necho no such image >&2\nexit 125\n")
    with expect_error(PluginError, "sandbox-failed", "no such image"):
        use(program, ContainerSandbox.stop)


@pytest.mark.parametrize("lines", ["", "#!/bin/sh\necho no daemon >&2\nexit 1\n"], ids=["missing", "without daemon"])
def test_program_without_containers_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    if lines:
        (tmp_path / "docker").write_text(lines)
        (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with expect_error(ConfigError, "sandbox-unavailable"):
        check_container("docker", ContainerParams())


@NO_BWRAP
def test_only_the_port_is_reached(tmp_path: Path, program: str) -> None:
    check_container(program, ContainerParams())
    assert use(program, lambda sandbox: connect(sandbox, "python3")) == ONLY_THE_PORT
    assert [call[:2] for call in calls(tmp_path)] == [[program, word] for word in ("info", "run", "exec", "exec")]


KILLED = """
import asyncio, sys
from rllm.builtin.sandboxes.container import start_docker
from rllm.builtin.sandboxes.container import ContainerParams
from rllm_core.contracts.sandbox import SandboxSetup

async def main():
    sandbox = await start_docker(ContainerParams(), SandboxSetup())
    print("started", flush=True)
    await sandbox.run(["sleep", "500"], seconds=500)

asyncio.run(main())
"""


@pytest.mark.smoke
@NO_BWRAP
@pytest.mark.parametrize("program", ["docker"], indirect=True)
def test_container_ends_with_a_killed_run(tmp_path: Path, program: str) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        (info,) = tmp_path.glob("*.json")
        first = Path("/proc") / info.read_text().split(":")[1].split(",")[0].strip(" }\n")
        assert first.exists()
        process.kill()
    while first.exists():
        time.sleep(0.05)  # The test's time limit ends this if the container stays.


async def run_command(*command: str) -> None:
    await run_program(command, seconds=60.0, stdin=b"", environment={})


def test_argument_longer_than_linux_allows_is_an_error() -> None:
    with expect_error(PluginError, "sandbox-failed"):
        asyncio.run(run_command("echo", "x" * 140_000))


def test_cancellation_during_a_failed_start_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cancel() -> None:
        begun = asyncio.Event()

        async def fail(*command: Any, **options: Any) -> None:
            begun.set()
            await asyncio.sleep(0.01)
            raise OSError(errno.EAGAIN, "again")

        monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)
        running = asyncio.create_task(run_command("echo"))
        await begun.wait()
        running.cancel()
        await running

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())


Act = Callable[[socket.socket, asyncio.Task[None]], Awaitable[None]]


def received_after(act: Act) -> bytes:
    """Return the bytes that the gateway receives on a connection up to its end, if `act` ends it."""

    async def run_command() -> bytes:
        loop = asyncio.get_running_loop()
        arrived, received = asyncio.Event(), loop.create_future()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            begun = await reader.readexactly(1)
            arrived.set()
            received.set_result(begun + await reader.read())
            writer.close()

        gateway = await asyncio.start_server(answer, "127.0.0.1", 0)
        listener = socket.create_server(("127.0.0.1", 0))
        ours, theirs = socket.socketpair()
        with ours, theirs, listener, socket.socket() as client:
            ours.setblocking(False)
            socket.send_fds(theirs, [b"1"], [listener.fileno()])
            forwarding = asyncio.create_task(forward(ours, gateway.sockets[0].getsockname()[1]))
            await asyncio.to_thread(client.connect, listener.getsockname())
            client.sendall(b"x")
            await arrived.wait()
            await act(client, forwarding)
            async with asyncio.timeout(10.0):
                sent: bytes = await received
            forwarding.cancel()
            await asyncio.wait([forwarding])
        gateway.close()
        return sent

    return asyncio.run(run_command())


async def reset(client: socket.socket, forwarding: asyncio.Task[None]) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


async def cancel(client: socket.socket, forwarding: asyncio.Task[None]) -> None:
    forwarding.cancel()


async def end(client: socket.socket, forwarding: asyncio.Task[None]) -> None:
    client.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("act", [reset, cancel, end])
def test_gateway_sees_the_end_of_a_connection(act: Act) -> None:
    assert received_after(act) == b"x"


def test_close_by_both_sides_at_once_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_eof(writer: asyncio.StreamWriter) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    async def run_command() -> None:
        forwarded = asyncio.get_running_loop().create_future()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await connect_port(reader, writer, port)
            except BaseExceptionGroup as error:
                forwarded.set_exception(error)
            else:
                forwarded.set_result(None)

        gateway = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = gateway.sockets[0].getsockname()[1]
        server = await asyncio.start_server(begin, "127.0.0.1", 0)
        _, client = await asyncio.open_connection(*server.sockets[0].getsockname())
        async with asyncio.timeout(10.0):
            await forwarded
        client.close()
        server.close()
        gateway.close()

    monkeypatch.setattr(asyncio.StreamWriter, "write_eof", write_eof)
    asyncio.run(run_command())
