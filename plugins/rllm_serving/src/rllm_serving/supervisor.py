"""Run a command, and let no process that it starts outlive it: ``python -I -S supervisor.py PARENT COMMAND…``.

It waits until the command ends, its parent ends, or SIGTERM arrives. Then it kills all processes that the command has
started, and ends as the command did. On Linux it is a subreaper: a daemon becomes its child, so the daemon is found.
On other systems it kills only the process group of the command.

It needs only the standard library, and skips site-packages for a fast start.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn  # It is slow to import.

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SECONDS = 0.5
"""Seconds between two checks that the parent is running. The kernel could report only the end of a parent's thread."""
NOT_FOUND = 127
EVENTS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGALRM}


def supervise_command(command: Sequence[str]) -> list[str]:
    """Return the command that runs a command below a supervisor. It ends with this process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def end_supervised_command(pid: int) -> None:
    """Order a supervisor to kill its command and to end. Wait for it afterwards. Do nothing if it has ended."""
    for number in (signal.SIGTERM, signal.SIGCONT):  # The command may have stopped its supervisor.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def supervise(parent: int, run: Callable[[], None]) -> NoReturn:
    """Call a function in a fork of this process, which has one thread. Then end as the fork did.

    Args:
        parent: process that the fork must not outlive.
        run: ends its process with an exit code.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, EVENTS)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # A signal that is ignored does not arrive.
    _set_for_process(PR_SET_CHILD_SUBREAPER, 1)
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            _enter_session(supervisor, mask)
            run()
        finally:
            os._exit(NOT_FOUND)
    signal.setitimer(signal.ITIMER_REAL, SECONDS, SECONDS)
    status = None
    while status is None and os.getppid() == parent and signal.sigwait(EVENTS) != signal.SIGTERM:
        status = _reap(child)
    status = _kill_all(child, status)
    _end_as(os.waitstatus_to_exitcode(status))


def _enter_session(supervisor: int, mask: set[int | signal.Signals]) -> None:
    """Put this process into its own session, so that signals to its group stay in it. End it with the supervisor."""
    os.setsid()
    _set_for_process(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(NOT_FOUND)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _replace_process(command: list[str]) -> None:
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode(errors="surrogateescape"))


def _set_for_process(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _reap(child: int) -> int | None:
    """Remove ended processes whose parents have ended. Return the command's status if it has ended."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in (0, child):
            return status if pid else None


def _kill_all(child: int, status: int | None) -> int:
    """Kill until no process is left, because they may start others meanwhile. Return the status of `child`."""
    if sys.platform != "linux":  # Processes whose parents have ended are no children of this process.
        if status is None:
            os.kill(child, signal.SIGKILL)
        _kill_group(child)
    with contextlib.suppress(ChildProcessError):  # No process is left.
        while True:
            pid, ended = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                _kill_descendants()
                pid, ended = os.waitpid(-1, 0)
            if pid == child:
                status = ended
    assert status is not None
    return status


def _kill_descendants() -> None:
    own = os.getpgrp()
    for pid, group in _descendants():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
        # A group is killed at once. One process after the other could start new ones faster.
        if group != own:
            _kill_group(group)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _descendants() -> Iterator[tuple[int, int]]:
    """Yield process ids and process groups. None without the directory /proc of Linux."""
    if sys.platform != "linux":
        return
    children = defaultdict(list)
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208  (pathlib is slow to import)
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
            _, parent, group = file.read().rpartition(b")")[2].split()[:3]
            children[int(parent)].append((int(name), int(group)))
    found = [(os.getpid(), 0)]
    for pid, _ in found:
        found += children[pid]
    yield from found[1:]


def _end_as(code: int) -> NoReturn:
    """End with an exit code. If it is negative, end by that signal."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # The handler of SIGKILL cannot be set.
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    supervise(int(sys.argv[1]), lambda: _replace_process(sys.argv[2:]))
