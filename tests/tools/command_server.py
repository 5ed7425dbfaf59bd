"""Starts commands as forks of this process, which has imported large libraries and rllm: five seconds less for each.

This script has the descriptor of a socket as its argument. Every message is a request in JSON, and has an answer.
The answer to ``{"start": {...}}``, with the fields of `Command`, is the process's id. The answer to
``{"status": id}`` is its return code as in `subprocess`, or null while it runs. Inherited descriptors come with the
request. The script ends when the other end of the socket is closed.

The training process of a fork is a fork too: every fork has a server for it, in one more process.

A fork behaves like ``python -W error -m MODULE WORDS``, from its first line to the last function at exit, and handles
signals like any other process. It does not tear down its modules, because this copies the pages of all libraries, which
is half of the CPU time of a short command. It shares only the seed of hashes with other forks. Tests of results that
must not depend on this seed compare with a process that was not forked.
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
from importlib.metadata import entry_points
from pathlib import Path

from forked import CommandServer

from rllm_serving.child_process import ChildProcess

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
    "rllm.cli.train",
    "rllm.training.loop",
    "rllm_local.backend",
    "rllm_view.report",
)
"""Modules of most commands. They must not compute, because no thread of torch may exist at a fork."""
PLUGINS = "rllm.plugins"
"""Group of the entry points whose modules every command imports."""
WITHOUT_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Allocator of Arrow, which otherwise starts a thread at import. Read at import."""
LONGEST_REQUEST = 1 << 18
"""Bytes."""
MOST_DESCRIPTORS = 16
ABOVE_DESCRIPTORS = 200


@dataclass(frozen=True)
class Command:
    """The command of a process, and its directory."""

    module: str
    words: list[str]
    directory: str
    environ: dict[str, str]
    stdout: str = os.devnull
    stderr: str = os.devnull
    descriptors: tuple[int, ...] = ()
    """Numbers that the received descriptors get."""
    safe_path: bool = False
    """True to import no module of the directory."""

    def become(self, received: list[int]) -> None:
        """Make this process the requested one, before it runs the command."""
        os.chdir(self.directory)
        os.environ.clear()
        os.environ.update(self.environ)
        for descriptor, file in enumerate((os.devnull, self.stdout, self.stderr)):
            opened = os.open(file, os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(opened, descriptor)
            os.close(opened)
        # Moved first, because a received descriptor may have the number of the next one.
        above = max(self.descriptors, default=0) + 1
        moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in received]
        for descriptor, number in zip(moved, self.descriptors, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        # The first entry is the directory of this script.
        here = [] if self.safe_path else [str(Path.cwd())]
        sys.path[:1] = [*here, *filter(None, self.environ.get("PYTHONPATH", "").split(os.pathsep))]
        sys.argv[1:] = self.words


class Exit:
    """How a fork ends: with a code. Without one, after Ctrl-C, as Python ends it."""

    code: int | None = None

    def at_once(self) -> None:
        """End the process. Registered first, so it is called last, after joined threads and other functions at exit."""
        if self.code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code)


def run(command: Command, received: list[int], process_exit: Exit) -> None:
    command.become(received)
    try:
        runpy.run_module(command.module, run_name="__main__", alter_sys=True)
        process_exit.code = 0
    except SystemExit as ended:
        # Python prints text before it ends, and also any other exception.
        process_exit.code = ended.code or 0 if isinstance(ended.code, int | None) else 1
        raise
    except Exception:
        process_exit.code = 1
        raise


def fork() -> int:
    """Fork, as the leader of a new group of processes."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        # Newer Pythons warn of the threads of numpy's BLAS, which stops them for the time of a fork.
        process = os.fork()
    os.setpgid(process, process)
    return process


def status(pid: int) -> int | None:
    ended, code = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(code) if ended else None


def serve(channel: socket.socket, process_exit: Exit) -> None:
    """Answer requests until the other end is closed. In every fork, run its command."""
    with channel:
        while True:
            text, received, _, _ = socket.recv_fds(channel, LONGEST_REQUEST, MOST_DESCRIPTORS)
            if not text:
                process_exit.code = 0
                return
            request = json.loads(text)
            if "start" in request:
                answer: int | None = fork()
                if answer == 0:
                    break
                for descriptor in received:
                    os.close(descriptor)
            else:
                answer = status(request["status"])
            channel.send(json.dumps(answer).encode())
    become_command(Command(**request["start"]), received, process_exit)


def become_command(command: Command, received: list[int], process_exit: Exit) -> None:
    """Run a command in this process, with a server for its children in a second one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if fork() == 0:
        ours.close()
        for descriptor in received:
            os.close(descriptor)
        serve(theirs, process_exit)
        return
    theirs.close()
    # Its descriptor must not have a number that a received one needs.
    ours = socket.socket(fileno=fcntl.fcntl(ours.detach(), fcntl.F_DUPFD_CLOEXEC, ABOVE_DESCRIPTORS))
    ChildProcess.spawn = CommandServer(ours, Path()).spawn  # type: ignore[method-assign,assignment]
    run(command, received, process_exit)


def main() -> None:
    process_exit = Exit()
    atexit.register(process_exit.at_once)
    os.environ.update(WITHOUT_THREADS)
    for name in LIBRARIES:
        importlib.import_module(name)
    for entry_point in entry_points(group=PLUGINS):
        entry_point.load()
    # Python seeds its own generator again in every fork.
    os.register_at_fork(after_in_child=importlib.import_module("numpy.random").seed)
    # Otherwise every fork copies the pages of all libraries when it collects garbage.
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv.pop())), process_exit)


if __name__ == "__main__":
    main()
