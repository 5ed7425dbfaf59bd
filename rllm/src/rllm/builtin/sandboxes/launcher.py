"""The first process of a command in the sandbox `bwrap`. It needs only Python's standard library.

Its arguments are a file descriptor, a port, and limits, then the command. It has the number 1 in its namespace of
processes, so the command cannot end it, and all processes of the command end with it. The machine receives the exit
code. If the machine closes the descriptor, the command ends.

If the port is not 0, it listens there and sends the listening socket to the machine, which answers its connections.
"""

from __future__ import annotations

import _socket  # `socket` and `signal` take 10 ms to import.
import ctypes
import os
import resource
import select
import struct
import sys

PR_SET_DUMPABLE = 4
SECONDS = 0.05
"""Seconds between two checks of the limits."""
NOT_FOUND, KILLED = 127, 137
BACKLOG = 128


def main(descriptor: str, port: str, processes: str, memory: str, disk: str, *command: str) -> int:
    """Run the command and return its exit code."""
    # Without it, the command could trace this process, and take its descriptors.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    machine = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, int(descriptor))
    os.set_inheritable(machine.fileno(), False)
    if int(port):
        listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        listener.bind(("127.0.0.1", int(port)))
        listener.listen(BACKLOG)
        sent = struct.pack("i", listener.fileno())
        machine.sendmsg([b"1"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, sent)])
        listener.close()
    child = os.fork()
    if child == 0:
        _become(command, int(processes), int(memory), int(disk))
    child_ended = os.pidfd_open(child)
    while True:
        ready = select.select([machine.fileno(), child_ended], [], [], SECONDS)[0]
        if child_ended in ready:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            return code if code >= 0 else 128 - code
        if machine.fileno() in ready:
            return KILLED
        _reap(child)
        if above := _above(int(processes), int(memory)):
            sys.stderr.write(f"The sandbox ended this command, because it used {above}.\n")
            return KILLED


def _reap(child: int) -> None:
    """Remove ended processes whose parents have ended, except for the command itself."""
    while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != child:
        os.waitpid(ended.si_pid, 0)


def _become(command: tuple[str, ...], processes: int, memory: int, disk: int) -> None:
    """Replace this process with the command."""
    os.setsid()
    # The machine ends this process first if it has no memory left.
    with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123  (pathlib takes 10 ms to import)
        file.write("1000")
    # The kernel ignores the number of processes if the user on the machine is root. `_above` covers that.
    for limit, value in (
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_FSIZE, disk),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.stderr.flush()
    os._exit(NOT_FOUND)


def _above(processes: int, memory: int) -> str:
    """Return the limit that the command has exceeded. Empty if it has exceeded none."""
    numbers = [
        name
        for name in os.listdir("/proc")  # noqa: PTH208
        if name.isdigit() and name != "1"
    ]
    threads = used = 0
    for number in numbers:
        try:
            threads += len(os.listdir(f"/proc/{number}/task"))  # noqa: PTH208
            if threads > processes:
                return f"more than {processes} processes and threads"
            with open(f"/proc/{number}/status") as file:  # noqa: PTH123
                lines = file.read().splitlines()
        except OSError:  # It has ended.
            continue
        # Pages of programs and libraries are not counted, because processes share them. Shared memory is counted in
        # every process that uses it.
        used += sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
    return f"more than {memory >> 20} MiB of memory" if used > memory else ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
