"""A seccomp filter for the sandbox `bwrap`: a command can make sockets of the usual families only.

Network namespaces do not separate all families. For example, a socket of AF_VSOCK reaches the host of a virtual
machine. The filter is a program for the kernel's classic BPF machine.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass

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
