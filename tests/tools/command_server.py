"""Starts commands as forks of this process, which has imported the large libraries: four seconds less for each.

A script. Every line that it reads is a request, every line that it writes the answer, both in JSON:
``{"start": {...}}``, the fields of `Command`, is answered with the process's id, and ``{"status": id}`` with what
`subprocess` calls its return code, or null while it runs. It ends with its input. Descriptors that a process inherits
come through a socket, whose descriptor is the script's argument.

A fork does what ``python -W error -m MODULE WORDS`` does, from the import of our first module to the last function that
is called at exit, and is a process like any other to signals. It does not take its modules apart, which copied the
pages of all libraries: half of what a short command computed. It shares with other forks the seed of hashes alone: what
must not depend on that is compared with a process that was not forked.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import runpy
import socket
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

LIBRARIES = (
    "hydra",
    "packaging.requirements",
    "pandas",
    "pyarrow.parquet",
    "pydantic",
    "rich.live",
    "torch._dynamo",
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
)
"""None of ours, and nothing that computes: no thread of torch's may exist when a process is forked."""
WITHOUT_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Arrow's allocator starts a thread at import otherwise. Read at import."""


@dataclass(frozen=True)
class Command:
    """What a process is to run, and where."""

    module: str
    words: list[str]
    directory: str
    environ: dict[str, str]
    stdout: str = os.devnull
    stderr: str = os.devnull
    descriptors: tuple[int, ...] = ()
    """Numbers that the received descriptors get."""

    def become(self, received: list[int]) -> None:
        """Make this process the one asked for, up to what it runs."""
        os.chdir(self.directory)
        os.environ.clear()
        os.environ.update(self.environ)
        for descriptor, file in enumerate((os.devnull, self.stdout, self.stderr)):
            opened = os.open(file, os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(opened, descriptor)
            os.close(opened)
        # Moved out of the way first, because a received descriptor may have the number that the next one needs.
        above = max(self.descriptors, default=0) + 1
        moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in received]
        for descriptor, number in zip(moved, self.descriptors, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        # The first entry is the folder of this script.
        sys.path[:1] = [str(Path.cwd()), *filter(None, self.environ.get("PYTHONPATH", "").split(os.pathsep))]
        sys.argv[1:] = self.words


class Ending:
    """How a fork ends: with a code, or as Python ends it where there is none."""

    code: int | None = None

    def at_once(self) -> None:
        """Registered first, so that it is called last: threads have been joined, and functions at exit called."""
        if self.code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code)


def run(command: Command, received: list[int], ending: Ending) -> None:
    command.become(received)
    try:
        runpy.run_module(command.module, run_name="__main__", alter_sys=True)
        ending.code = 0
    except SystemExit as ended:
        # A text is printed first, and any other exception too.
        ending.code = ended.code or 0 if isinstance(ended.code, int | None) else None
        raise


def fork() -> int:
    """Fork, as the leader of a new group of processes."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        # Newer Pythons warn of the threads of numpy's BLAS, which stops them for the time of a fork.
        process = os.fork()
    os.setpgid(process, process)
    return process


def receive(channel: socket.socket, count: int) -> list[int]:
    """Return the descriptors that belong to a request."""
    return socket.recv_fds(channel, 1, count)[1] if count else []


def status(pid: int) -> int | None:
    ended, code = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(code) if ended else None


def main() -> None:
    ending = Ending()
    atexit.register(ending.at_once)
    os.environ.update(WITHOUT_THREADS)
    for name in LIBRARIES:
        importlib.import_module(name)
    # Python's own generator is seeded anew in every fork.
    os.register_at_fork(after_in_child=importlib.import_module("numpy.random").seed)
    # Or every fork copies the pages of all libraries as soon as it collects garbage.
    gc.collect()
    gc.freeze()
    channel = socket.socket(fileno=int(sys.argv.pop()))
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            command = Command(**request["start"])
            received = receive(channel, len(command.descriptors))
            answer: int | None = fork()
            if answer == 0:
                channel.close()
                run(command, received, ending)
                return
            for descriptor in received:
                os.close(descriptor)
        else:
            answer = status(request["status"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
