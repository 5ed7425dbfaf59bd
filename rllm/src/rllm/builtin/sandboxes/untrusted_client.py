"""The command ``untrusted`` of tests: run a program of the agent, which cannot change the tests or the reward.

It needs only Python's standard library. It sends its arguments and its standard input to `untrusted`, which runs in the
process of the run. Then it prints the outputs, and ends with the program's exit code.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import sys
from typing import Any

VARIABLE = "RLLM_UNTRUSTED"
LARGEST_INPUT = 16 << 20
STOP = b"s"
"""Sent after the request to stop the program. Without it, the connection ends because this process was killed."""


def main(*command: str) -> int:
    """Run the command, and return its exit code."""
    if not command:
        sys.stderr.write("untrusted: write a command after it, for example `untrusted python3 solution.py`\n")
        return 2
    port, key = os.environ[VARIABLE].split()
    stdin = _read_stdin()
    if len(stdin) > LARGEST_INPUT:
        sys.stderr.write(f"untrusted: standard input has {len(stdin)} bytes, and may have {LARGEST_INPUT}\n")
        return 2
    request = {"key": key, "command": command, "directory": os.getcwd(), "stdin": len(stdin)}  # noqa: PTH109
    with socket.create_connection(("127.0.0.1", int(port))) as connection, connection.makefile("rb") as answer:
        # The test may read files of the program after a time limit, so the program ends before this process.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: _stop(connection))
        connection.sendall(json.dumps(request).encode() + b"\n" + stdin)
        header = answer.readline()
        if not header:
            sys.stderr.write("untrusted: the run does not answer\n")
            return 125
        facts: dict[str, Any] = json.loads(header)
        for stream in (sys.stdout, sys.stderr):
            stream.buffer.write(answer.read(facts[stream.name.strip("<>")]))
            stream.flush()
    code: int = facts["exit_code"]
    return code


def _stop(connection: socket.socket) -> None:
    try:
        connection.sendall(STOP)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # A second signal, or the run has ended.


def _read_stdin() -> bytes:
    """Return standard input. A file is not consumed, because a loop of the test may read its lines."""
    try:
        place = os.lseek(0, 0, os.SEEK_CUR) if stat.S_ISREG(os.fstat(0).st_mode) else None
        with os.fdopen(0, "rb", closefd=False) as file:
            content = file.read()
    except OSError:  # It is closed.
        return b""
    if place is not None:
        os.lseek(0, place, os.SEEK_SET)
    return content


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
