"""Escapes from the sandbox `bwrap` fail, and it leaves nothing behind."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error
from programs import needs_program

from rllm.builtin.sandboxes import launcher
from rllm.builtin.sandboxes.bwrap import BwrapParams, BwrapSandbox, check_bwrap, start_bwrap
from rllm_core.contracts.sandbox import CommandResult, SandboxSetup
from rllm_core.errors import ConfigError, RolloutError

from .ports import ONLY_THE_PORT, SECONDS, connect

pytestmark = needs_program("bwrap")

MIB = 1 << 20
SMALL = SandboxSetup(disk=8 * MIB, memory=128 * MIB, processes=32)


def use(act: Callable[[BwrapSandbox], Awaitable[Any]], setup: SandboxSetup = SMALL, **options: Any) -> Any:
    async def run() -> Any:
        sandbox = await start_bwrap(BwrapParams(**options), setup)
        try:
            return await act(sandbox)
        finally:
            await sandbox.stop()

    return asyncio.run(run())


def run(*lines: str, **options: Any) -> list[CommandResult]:
    """Run lines of a shell in one sandbox."""

    async def act(sandbox: BwrapSandbox) -> list[CommandResult]:
        return [await sandbox.run(["sh", "-c", line], **{"seconds": SECONDS, **options}) for line in lines]

    results: list[CommandResult] = use(act)
    return results


def python(source: str) -> str:
    return f"exec {Path(sys.executable).resolve()} -I -S -c '{textwrap.dedent(source)}'"


def test_home_directory_and_other_processes_are_hidden(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret")
    files, processes = run(
        f"cat {tmp_path}/secret; ls -A {Path.home()} $HOME /home/agent; cat /etc/shadow",
        f"ls -d /proc/[0-9]* | wc -l; kill -9 {os.getpid()}; cat /proc/1/environ /proc/1/mem; ls /proc/1/fd/",
    )
    assert files.exit_code
    visible = {word for word in files.stdout.decode().split() if not word.endswith(":")}
    # The directory of rllm's own Python is visible, and may be in the home directory.
    assert visible <= set(Path(sys.base_prefix).parts)
    assert int(processes.stdout.split()[0]) < 10
    assert b"Permission denied" in processes.stderr


def test_machine_cannot_be_written() -> None:
    python = f"{sys.base_prefix}/x {sys.base_prefix}/bin/*"
    proc = "/proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sysrq-trigger /proc/irq/default_smp_affinity"
    places = f"/usr/x /x /etc/x /etc/passwd /dev/x /run/x {python} /run/rllm/launcher.py {proc}"
    (result,) = run(f"for place in {places}; do (true >> $place) && echo $place; done; mount -t tmpfs x /tmp")
    assert result.stdout == b"" and result.exit_code


def test_launcher_cannot_be_killed_or_traced() -> None:
    trace = python("import ctypes; assert ctypes.CDLL(None).ptrace(16, 1, 0, 0) == -1; print(True)")
    kill, traced = run("kill -9 1; kill -STOP 1; echo alive", trace)
    assert (kill.stdout, traced.stdout) == (b"alive\n", b"True\n")


def test_network_is_off_except_for_one_port() -> None:
    assert use(lambda sandbox: connect(sandbox, str(Path(sys.executable).resolve()))) == ONLY_THE_PORT


FAMILIES = """
import socket
for family, protocol in ((1, 0), (2, 0), (10, 0), (16, 0), (16, 15), (17, 0), (38, 0), (40, 0)):
    try:
        socket.socket(family, socket.SOCK_RAW if family in (16, 17) else socket.SOCK_STREAM, protocol)
    except OSError as error:
        print(error.errno)
    else:
        print("made")
"""


def test_only_usual_sockets_can_be_made() -> None:
    # Unix, IPv4, IPv6, routes of netlink, events of the kernel, packets, cryptography, and vsock.
    (result,) = run(python(FAMILIES.replace('"made"', "True")))
    assert result.stdout.split() == [b"True"] * 4 + [b"%d" % errno.EAFNOSUPPORT] * 4


def test_environment_is_not_on_a_command_line() -> None:
    async def act(sandbox: BwrapSandbox) -> set[Path]:
        command = ["sh", "-c", 'echo "$KEY" > begun; sleep 1000']
        running = asyncio.create_task(sandbox.run(command, seconds=SECONDS, environment={"KEY": "s3cret-4711"}))
        while (await sandbox.run_untrusted(["cat", "begun"], seconds=SECONDS)).stdout != b"s3cret-4711\n":
            pass
        found = {path for path in Path("/proc").glob("[0-9]*/cmdline") if b"s3cret-4711" in read_bytes(path)}
        running.cancel()
        await asyncio.wait([running])
        return found

    assert use(act) == set()


def read_bytes(path: Path) -> bytes:
    """Return the contents of a file of a process, which may have ended."""
    with suppress(OSError):
        return path.read_bytes()
    return b""


def test_other_sandboxes_are_hidden() -> None:
    async def act(sandbox: BwrapSandbox) -> CommandResult:
        await sandbox.run(["sh", "-c", "echo key > /app/key; echo key > /tmp/key"], seconds=SECONDS)
        other = await start_bwrap(BwrapParams(), SMALL)
        try:
            return await other.run(["sh", "-c", "cat /app/key /tmp/key /dev/shm/*/key"], seconds=SECONDS)
        finally:
            await other.stop()

    assert use(act).stdout == b""


def test_tests_are_those_that_are_copied_in(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test.sh").write_text("echo ours")
    (tmp_path / "link").symlink_to("tests")
    bad = "echo bad > /tests/test.sh; echo bad > /tests/conftest.py; mkdir -p /tests/no/a; chmod -R 0 /tests/no"
    stays = "(trap '' TERM HUP; while :; do echo bad > /tests/test.sh; done) & sleep 0.1"

    async def act(sandbox: BwrapSandbox) -> CommandResult:
        await sandbox.run(["sh", "-c", f"{bad}; {stays}"], seconds=SECONDS)
        await sandbox.copy_in(tmp_path / "link", "/tests")
        return await sandbox.run(["sh", "-c", "ls /tests; sh /tests/test.sh"], seconds=SECONDS)

    assert use(act).stdout == b"test.sh\nours\n"


def test_disk_has_a_limit() -> None:
    fill = "for place in {0}; do cat /dev/zero > $place/big; done; du -sm {0}"
    of_agent, of_tests, small = run(
        fill.format("/app /tmp /home/agent /dev/shm"),
        fill.format("/logs /tests"),
        "i=0; while echo > /tmp/$i; do i=$((i+1)); done 2>/dev/null; echo $i",
    )
    for filled in (of_agent, of_tests):
        assert sum(int(line.split()[0]) for line in filled.stdout.splitlines()) <= SMALL.disk / MIB + 4
    assert int(small.stdout) < SMALL.disk / 4096


@pytest.mark.parametrize(
    "bomb",
    [
        "for i in $(seq 300); do sleep 1000 & done; wait",
        python("import os, time\nfor _ in range(8): os.fork()\ntime.sleep(1000)"),
    ],
)
def test_forks_have_a_limit(bomb: str) -> None:
    # At most 300 processes, so that the machine survives if the limit fails.
    (result,) = run(bomb)
    assert result.exit_code


WRITTEN = """
import mmap
block = mmap.mmap(-1, {bytes})
for place in range(0, len(block), 4096):
    block[place] = 1
"""


@pytest.mark.parametrize("block", ["block = bytearray({bytes})", WRITTEN], ids=["private", "shared"])
@pytest.mark.parametrize("processes", [1, 4])
def test_memory_of_all_processes_has_a_limit(processes: int, block: str) -> None:
    fork = f"import os, time\nany(os.fork() == 0 for _ in range({processes - 1}))\n"
    source = fork + block.format(bytes=SMALL.memory // processes + 8 * MIB) + "\ntime.sleep(1000)"
    (result,) = run(python(source))
    assert result.exit_code in ({launcher.KILLED} if block == WRITTEN else {1, launcher.KILLED})


def test_threads_count_as_processes() -> None:
    ended = threading.Event()
    threads = [threading.Thread(target=ended.wait) for _ in range(200)]
    for thread in threads:
        thread.start()
    processes = len(list(Path("/proc").glob("[0-9]*")))
    above = launcher._above(processes + 100, 1 << 60)
    ended.set()
    assert "threads" in above


@pytest.mark.long
def test_command_that_ignores_signals_ends() -> None:
    ignoring = "trap '' TERM HUP INT; (trap '' TERM; sleep 1000) & while :; do sleep 0.1; done"
    first, later = run(ignoring, "ls -d /proc/[0-9]*", seconds=1)
    assert first.exit_code is None
    assert len(later.stdout.split()) < 5


def test_cancelled_command_ends() -> None:
    async def act(sandbox: BwrapSandbox) -> bytes:
        command = "while :; do echo x >> beats; sleep 0.01; done"
        running = asyncio.create_task(sandbox.run(["sh", "-c", command], seconds=SECONDS))
        count = ["sh", "-c", "cat beats 2>/dev/null | wc -l"]
        while (await sandbox.run(count, seconds=SECONDS)).stdout == b"0\n":
            pass
        running.cancel()
        await asyncio.wait([running])
        counts = {(await sandbox.run(count, seconds=SECONDS)).stdout for _ in range(3)}
        return b"".join(counts)

    assert len(use(act).splitlines()) == 1


def test_readable_directories_are_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "my-agent"
    program.write_text("#!/bin/sh\necho hello")
    program.chmod(0o755)

    async def act(sandbox: BwrapSandbox) -> list[CommandResult]:
        write = ["sh", "-c", f"echo bad > {program}"]
        return [await sandbox.run(command, seconds=SECONDS) for command in (["my-agent"], write)]

    called, written = use(act, readable=[str(tmp_path)])
    assert called.stdout == b"hello\n" and written.exit_code


@pytest.mark.parametrize("files", [1, 3])
def test_hint_at_storage_only_for_a_full_disk(tmp_path: Path, files: int) -> None:
    for number in range(files):
        (tmp_path / str(number)).write_bytes(bytes(SMALL.disk * 3 // (2 * files)))
    with pytest.raises(RolloutError) as full:
        use(lambda sandbox: sandbox.copy_in(tmp_path, "/app"))
    with pytest.raises(RolloutError) as missing:
        use(lambda sandbox: sandbox.copy_in(tmp_path, "/no"))
    assert ["storage_mb" in each.value.hint for each in (full, missing)] == [True, False]


@pytest.mark.parametrize("setup", [SandboxSetup(), SandboxSetup(readable=(Path("/app/agent.py"),))])
def test_readable_in_the_working_directory_is_an_error(setup: SandboxSetup) -> None:
    with expect_error(ConfigError, "readable-in-sandbox"):
        use(BwrapSandbox.stop, setup, readable=[] if setup.readable else ["/app/x"])


SANDBOXES = 20
MANY = """
import asyncio, sys
from rllm.builtin.sandboxes.bwrap import start_bwrap
from rllm.builtin.sandboxes.bwrap import BwrapParams
from rllm_core.contracts.sandbox import SandboxSetup

async def one(number):
    sandbox = await start_bwrap(BwrapParams(), SandboxSetup(disk=1 << 20, processes=8))
    result = await sandbox.run(["sh", "-c", f"echo {number} > x; cat x"], seconds=500)
    assert result.stdout == f"{number}\\n".encode(), result
    return sandbox

async def main():
    sandboxes = await asyncio.gather(*map(one, range(20)))
    running = [asyncio.create_task(each.run(["sleep", sys.argv[1]], seconds=500)) for each in sandboxes]
    print("started", flush=True)
    await asyncio.gather(*running)

asyncio.run(main())
"""


def processes_with(word: str) -> set[Path]:
    """Return the directories in /proc of processes that have `word` as an argument."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        if word.encode() in read_bytes(path).split(b"\0"):
            found.add(path.parent)
    return found


@pytest.mark.smoke
def test_sandboxes_end_with_a_killed_run() -> None:
    seconds = f"4{os.getpid()}"
    with subprocess.Popen([sys.executable, "-c", MANY, seconds], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        while len(processes_with(seconds)) < SANDBOXES:
            time.sleep(0.1)
        holders = {path.parent for path in Path("/proc").glob("[0-9]*/stat") if parent_of(path) == process.pid}
        process.kill()
    while processes_with(seconds) or any(holder.exists() for holder in holders):
        time.sleep(0.05)  # The test's time limit ends this if a process stays.


def parent_of(path: Path) -> int | None:
    """Return the parent of the process with this ``/proc/PID/stat``, or None if it has ended."""
    try:
        return int(path.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


@pytest.mark.parametrize("missing", ["bwrap", "nsenter"])
def test_check_names_the_package(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    check_bwrap(BwrapParams())
    monkeypatch.setattr("shutil.which", lambda name: None if name == missing else f"/usr/bin/{name}")
    with expect_error(ConfigError, "sandbox-unavailable", missing):
        check_bwrap(BwrapParams())
