"""The sandbox `bwrap`: commands in their own namespaces, made by bubblewrap.

A holder process has a mount namespace with a tmpfs, which has a fixed size and contains the sandbox's files. The files
of tests are in a second tmpfs of this size, because programs of the agent could fill the first one. Each command is a
bwrap in that namespace. Only its directories of both can be written. All namespaces of a command, with all its
processes, end with it. The kernel deletes both when the holder ends. It ends if this process dies.

The command has no network. Its first process (`launcher`) listens on the loopback address of the command's network
namespace, and sends the listening socket to this process. A socket stays in its namespace, so this process accepts the
connections, and forwards them to the gateway.

A seccomp filter allows sockets of the usual families only, because network namespaces do not separate all families. For
example, a socket of AF_VSOCK reaches the host of a virtual machine. The filter is a program of classic BPF.
"""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from rllm.builtin.sandboxes.isolated import IsolatedSandbox, forward, readable_paths, start_holder
from rllm.builtin.sandboxes.process import SECONDS_TO_END, kill_group, run_program
from rllm_core.contracts.params import Params
from rllm_core.contracts.sandbox import CommandResult, SandboxSetup
from rllm_core.errors import ConfigError, PluginError

PROGRAMS = {"bwrap": "bubblewrap", "unshare": "util-linux", "nsenter": "util-linux"}
"""Programs that the sandbox `bwrap` starts, and the Debian packages that contain them."""
APPARMOR = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"


class BwrapParams(Params):
    """Options of the sandbox ``bwrap``."""

    readable: list[str] = Field(default_factory=list)
    """More directories of this machine that commands may read, under the same path. The subdirectory `bin` of each is
    added to PATH. For example the virtual environment of an agent."""


def check_bwrap(params: BwrapParams) -> None:
    """Check that sandboxes can be started.

    Raises:
        ConfigError: a program is missing, or the machine does not allow namespaces.
    """
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            raise ConfigError(
                "sandbox-unavailable",
                f"Sandbox bwrap needs the program {program}, which is not installed.",
                f"Install it, for example with `sudo apt-get install {package}`.",
            )
    command = ["unshare", "--user", "--map-root-user", "--mount", "bwrap", "--unshare-all", "--ro-bind", "/", "/"]
    trial = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if trial.returncode:
        raise ConfigError(
            "sandbox-unavailable",
            f"Sandbox bwrap cannot start here: {trial.stderr.strip()}",
            f"Allow user namespaces. On Ubuntu 24.04 or later: `{APPARMOR}`. In a container, allow them for it.",
        )


PLACE = "/dev/shm"
"""Mount point of the tmpfs in the holder's namespace. It exists on every machine, and the machine's own is not used."""
REPLACED = {"/app": "app", "/logs": "of-tests/logs", "/tests": "of-tests/tests"}
DIRECTORIES = {**REPLACED, "/tmp": "tmp", "/home/agent": "home", "/dev/shm": "shm"}
"""Directory in the sandbox -> directory in the tmpfs. Copies replace the directories in `REPLACED`. The second tmpfs is
``of-tests``."""
UNTRUSTED = {"/app": "app", "/home/agent": "home", "/tmp": "untrusted-tmp", "/dev/shm": "untrusted-shm"}
"""Directories of a command that must not see the tests, which run at the same time."""
HOLD = """
options="mode=755,nosuid,nodev,size=$1,nr_inodes=$2"
mount -t tmpfs -o "$options" rllm "$0" && cd "$0" && shift 2 && mkdir etc of-tests &&
mount -t tmpfs -o "$options" rllm of-tests && mkdir "$@" &&
echo root:x:0:0::/home/agent:/bin/sh > etc/passwd && echo root:x:0: > etc/group &&
echo 127.0.0.1 localhost > etc/hosts && echo ready && read -r end
"""
BYTES_PER_FILE = 4096
SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
FROM_ETC = (
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "ssl/certs",  # Not the private keys, which processes of root could read.
    "ssl/openssl.cnf",
    "ca-certificates",
)
OPTIONS = [
    "--unshare-all",
    "--unshare-user",
    "--disable-userns",
    "--cap-drop",
    "ALL",
    "--die-with-parent",
    "--as-pid-1",
]
OPTIONS += ["--hostname", "sandbox", "--clearenv", "--proc", "/proc", "--dev", "/dev"]
PROC_READABLE = ("bus", "fs", "irq", "sys", "sysrq-trigger")
PROC_HIDDEN = ("kcore", "keys", "latency_stats", "timer_list", "sched_debug")
"""Files of /proc with which processes of root could change the machine or read its memory. Containers hide them too."""
ENTER = ("nsenter", "--preserve-credentials", "--user", "--mount", "--target")
"""Command that enters the holder's namespaces, without its process number."""
LAUNCHER = "/run/rllm/launcher.py"
PYTHON = Path(sys.executable).resolve()


class BwrapSandbox(IsolatedSandbox):
    """A holder process, and the commands in its namespace."""

    def __init__(self, holder: asyncio.subprocess.Process, params: BwrapParams, setup: SandboxSetup) -> None:
        self._holder = holder
        self._setup = setup
        readable = readable_paths(params.readable, setup)
        bins = [f"{path}/bin" for path in readable]
        self._path = ":".join([*bins, "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", f"{sys.base_prefix}/bin"])
        self._readable = [path for path in (*readable, Path(sys.base_prefix)) if not path.is_relative_to("/usr")]

    async def run(
        self,
        command: Sequence[str],
        *,
        seconds: float,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        port: int | None = None,
    ) -> CommandResult:
        bwrap = self._bwrap(DIRECTORIES, environment or {})
        return await self._run(bwrap, command, seconds=seconds, stdin=stdin, port=port)

    async def run_untrusted(self, command: Sequence[str], *, seconds: float, stdin: bytes = b"") -> CommandResult:
        return await self._run(self._bwrap(UNTRUSTED, {}), command, seconds=seconds, stdin=stdin, port=None)

    async def stop(self) -> None:
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        await self._holder.wait()

    async def _run(
        self, bwrap: Sequence[str], command: Sequence[str], *, seconds: float, stdin: bytes, port: int | None
    ) -> CommandResult:
        """Run a command in new namespaces, which the arguments `bwrap` describe."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        limits = (self._setup.processes, self._setup.memory, self._setup.disk)
        numbers = map(str, (theirs.fileno(), port or 0, *limits))
        launcher = [str(PYTHON), "-I", "-S", LAUNCHER, *numbers]
        forwarding = None if port is None else asyncio.create_task(forward(ours, port))

        async def end(process: asyncio.subprocess.Process) -> None:
            # The launcher sees it, and ends with all processes. bwrap ends after the last one.
            ours.shutdown(socket.SHUT_RDWR)
            try:
                async with asyncio.timeout(SECONDS_TO_END):
                    await process.wait()
            except TimeoutError:
                await kill_group(process)

        files = _files_of(bwrap)
        options = [word for option, descriptor in files.items() for word in (option, str(descriptor))]
        try:
            return await run_program(
                [*ENTER, str(self._holder.pid), "--", "bwrap", *options, "--", *launcher, *command],
                seconds=seconds,
                stdin=stdin,
                environment={"PATH": os.environ.get("PATH", os.defpath)},
                end=end,
                pass_fds=(theirs.fileno(), *files.values()),
            )
        finally:
            for descriptor in files.values():
                os.close(descriptor)
            if forwarding is not None:
                forwarding.cancel()
                await asyncio.wait([forwarding])
            ours.close()
            theirs.close()

    def _bwrap(self, directories: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
        """Return arguments of bwrap: the files that the command sees, and its environment variables."""
        arguments = [*OPTIONS, "--remount-ro", "/dev"]
        for name in PROC_READABLE:
            arguments += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
        for name in PROC_HIDDEN:
            if Path("/proc", name).exists():
                arguments += ["--ro-bind", "/dev/null", f"/proc/{name}"]
        arguments += ["--ro-bind", "/usr", "/usr", *_system_directories()]
        for name in FROM_ETC:
            arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        for name in ("passwd", "group", "hosts"):
            arguments += ["--ro-bind", f"{PLACE}/etc/{name}", f"/etc/{name}"]
        for directory, name in directories.items():
            arguments += ["--bind", f"{PLACE}/{name}", directory]
        for path in self._readable:
            arguments += ["--ro-bind", str(path), str(path)]
        arguments += ["--ro-bind", str(Path(__file__).with_name("launcher.py")), LAUNCHER, "--remount-ro", "/"]
        arguments += ["--chdir", "/app"]
        variables = {"PATH": self._path, "HOME": "/home/agent", "SANDBOX_ROOT": "", "LANG": "C.UTF-8", **environment}
        for name, value in variables.items():
            arguments += ["--setenv", name, value]
        return arguments


async def start_bwrap(params: BwrapParams, setup: SandboxSetup) -> BwrapSandbox:
    """Start the holder of a sandbox, which makes its file system.

    Raises:
        ConfigError: commands cannot read a directory of the machine, because the sandbox has its own at this path.
        PluginError: the holder cannot be started.
    """
    for path in readable_paths(params.readable, setup):
        if any(path.is_relative_to(directory) for directory in REPLACED):
            raise ConfigError(
                "readable-in-sandbox",
                f"Sandbox bwrap has its own /{path.parts[1]}, so its commands cannot read {path} of this machine.",
                f"Move the agent or the project out of /{path.parts[1]}, for example to /opt.",
            )
    files = setup.disk // BYTES_PER_FILE
    holder, reason = await start_holder(
        *("unshare", "--user", "--map-root-user", "--mount", "--"),
        *("sh", "-c", HOLD, PLACE, str(setup.disk), str(files), *{*DIRECTORIES.values(), *UNTRUSTED.values()}),
    )
    if reason is not None:
        raise PluginError(
            "sandbox-failed",
            f"A sandbox cannot be started: {reason}",
            "Run `rllm plugins doctor`, and run fewer rollouts.",
        )
    return BwrapSandbox(holder, params, setup)


def _files_of(arguments: Sequence[str]) -> dict[str, int]:
    """Return options of bwrap, each with a descriptor of a file that it reads.

    Other users of the machine can read command lines, so environment variables are not in them.
    """
    contents = {"--args": "\0".join([*arguments, ""]).encode(), "--seccomp": socket_filter()}
    return {option: _memory_file(content) for option, content in contents.items() if content is not None}


def _memory_file(content: bytes) -> int:
    """Return the descriptor of a file that only this process and its child processes can read."""
    descriptor = os.memfd_create("rllm")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
        file.flush()
        file.seek(0)
    return descriptor


def _system_directories() -> list[str]:
    arguments = []
    for name in SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    return arguments


LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
"""Codes of BPF: load 32 bits, jump if it equals or is at least a constant, return."""
NUMBER, ARCHITECTURE, FAMILY, PROTOCOL = 0, 4, 16, 32
"""Places in ``struct seccomp_data``: the system call, and the lower halves of its first and third argument."""
ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000
UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
NETLINK_ROUTE = 0
"""The protocol with which programs list network interfaces. Without its capability, it changes nothing."""
IO_URING_SETUP = 425
"""Rings make sockets without the system call ``socket``."""
X32 = 0x40000000
"""First system call of a second set of numbers, which ordinary programs do not use."""
Instruction = tuple[int, int, int, int]


@dataclass(frozen=True)
class _Calls:
    """Numbers of system calls of one architecture."""

    architecture: int
    sockets: tuple[int, ...]
    """Calls whose first argument is a family: ``socket`` and ``socketpair``."""
    closed: tuple[int, ...] = (IO_URING_SETUP,)


MACHINES = {
    # Each also runs 32-bit programs. `socketcall` of i386 has its arguments in memory, so it is closed.
    "x86_64": (_Calls(0xC000003E, (41, 53)), _Calls(0x40000003, (359, 360), (IO_URING_SETUP, 102))),
    "aarch64": (_Calls(0xC00000B7, (198, 199)), _Calls(0x40000028, (281, 288))),
}


def socket_filter(machine: str = platform.machine()) -> bytes | None:
    """Return the filter, or None for a machine whose system calls have other numbers."""
    if machine not in MACHINES:
        return None
    program = [each for calls in MACHINES[machine] for each in _filter(calls)]
    return b"".join(struct.pack("HBBI", *each) for each in [*program, (RETURN, 0, 0, KILL)])


def _filter(calls: _Calls) -> list[Instruction]:
    """Return instructions that decide all system calls of an architecture, and skip others."""
    missing, no_family = (RETURN, 0, 0, ERROR | errno.ENOSYS), (RETURN, 0, 0, ERROR | errno.EAFNOSUPPORT)
    allow = (RETURN, 0, 0, ALLOW)
    body: list[Instruction] = [(LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, X32), missing]
    for number in calls.closed:
        body += [(EQUAL, 0, 1, number), missing]
    for place, number in enumerate(calls.sockets):
        body.append((EQUAL, len(calls.sockets) - place, 0, number))
    body += [allow, (LOAD, 0, 0, FAMILY)]
    for family in (UNIX, INET, INET6):
        body += [(EQUAL, 0, 1, family), allow]
    body += [(EQUAL, 1, 0, NETLINK), no_family, (LOAD, 0, 0, PROTOCOL), (EQUAL, 0, 1, NETLINK_ROUTE), allow, no_family]
    return [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 0, len(body), calls.architecture), *body]
