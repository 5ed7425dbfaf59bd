"""A process that starts agents: ``python -m rllm_gateway.running.fork_server PLACE FUNCTION PATH``.

An agent's process must be its own, since its session is in the environment and clients are often made when a file is
imported. Importing a client takes a second; so this process imports the installed packages that the agent imports, and
forks itself for each attempt. Where an import has started threads, which a fork would lose, it starts a fresh Python.

It reads lines ``{"start": number, "environment": …, "task": …, "log": …, "result": …}`` and ``{"kill": number}``, and
writes ``ready``, then ``{"ended": number, "code": …}`` for each start. It ends, and all agents with it, with its input.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import selectors
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllm_gateway.running.calling import FAILED, RESULT, call_and_leave
from rllm_gateway.running.ready_contexts import warm_up_with_contexts
from rllm_gateway.running.target import Target, imported_packages

PR_SET_PDEATHSIG = 1


class ForkServer:
    """The agents under way."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._numbers: dict[int, int] = {}
        self._libc = ctypes.CDLL(None) if sys.platform == "linux" else None
        self.private: list[int] = []
        """Descriptors that agents must not have."""
        importlib.import_module("rllm_gateway.client")  # what every agent's process needs
        _import_installed(target)
        warm_up_with_contexts(_warm_up)
        # A collection in an agent would write to every page that it shares with this process.
        gc.collect()
        gc.freeze()
        # On macOS, system libraries break in a fork that does not execute anything.
        self._forks = sys.platform == "linux" and _threads() == 1

    def start(self, order: Mapping[str, Any]) -> None:
        """Start an agent."""
        pid = self._forked(order) if self._forks else self._spawned(order)
        self._numbers[pid] = order["start"]

    def kill(self, number: int) -> None:
        """End an agent and everything that it has started; nothing where it has ended."""
        for pid, known in self._numbers.items():
            if known == number:
                _kill_group(pid)

    def kill_all(self) -> None:
        for pid in self._numbers:
            _kill_group(pid)

    def reap(self) -> list[tuple[int, int]]:
        """Number and exit code of agents that have ended; minus the signal that ended one."""
        ended: list[tuple[int, int]] = []
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            if (number := self._numbers.pop(pid, None)) is not None:
                # What the agent has left behind ends with it.
                _kill_group(pid)
                ended.append((number, os.waitstatus_to_exitcode(status)))
        return ended

    def _forked(self, order: Mapping[str, Any]) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.setpgid(pid, pid)  # also by the child: whoever is first
            return pid
        code = FAILED
        try:
            self._become_agent(order, parent)
            code = call_and_leave(self._target, order["task"], Path(order["result"]))
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def _become_agent(self, order: Mapping[str, Any], parent: int) -> None:
        with contextlib.suppress(PermissionError):
            os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for descriptor in self.private:
            os.close(descriptor)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._libc is not None:
            self._libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(FAILED)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  (the process's own)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
        os.environ.update(order["environment"])

    def _spawned(self, order: Mapping[str, Any]) -> int:
        environment = {**os.environ, **order["environment"], RESULT: order["result"]}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        program = [sys.executable, "-P", "-m", "rllm_gateway.running.calling"]
        with Path(order["log"]).open("ab") as log:
            process = subprocess.Popen(
                [*program, self._target.place, self._target.function],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as task:
            task.write(json.dumps(order["task"]).encode())
        process.returncode = 0  # `reap` waits for it
        return process.pid


def serve(server: ForkServer) -> None:
    """Do what comes, until the input ends."""
    woken, waker = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    asked, replies = os.dup(0), os.dup(1)
    # An agent that prints writes to its log, and never among the replies.
    os.dup2(2, 1)
    selector = selectors.PollSelector()  # without a descriptor of its own
    server.private += [asked, replies, woken, waker]
    selector.register(asked, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    _write(replies, "ready")
    begun = b""
    while True:
        ready = {key.fd for key, _ in selector.select()}
        if woken in ready:
            os.read(woken, 4096)
        for number, code in server.reap():
            _write(replies, json.dumps({"ended": number, "code": code}))
        if asked in ready:
            data = os.read(asked, 1 << 20)
            if not data:
                server.kill_all()
                return
            *lines, begun = (begun + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                server.start(order) if "start" in order else server.kill(order["kill"])


def _import_installed(target: Target) -> None:
    """Import what the agent imports of installed packages.

    Not what is the agent's own, which may make clients as it is imported. An import that fails here fails again in the
    agent, where it is seen.
    """
    for name in imported_packages(target):
        with contextlib.suppress(Exception, SystemExit):
            if _is_installed(name.partition(".")[0]):
                importlib.import_module(name)


def _warm_up() -> None:
    """Make clients of OpenAI and Anthropic, and forget them: the first of a process takes 100 ms, later ones 20 ms.

    Only where the agent imports them. What goes wrong here goes wrong again in the agent, where it is seen.
    """
    for name, client, parts in (("openai", "OpenAI", ("chat", "responses")), ("anthropic", "Anthropic", ("messages",))):
        if name in sys.modules:
            with contextlib.suppress(Exception):
                made = getattr(sys.modules[name], client)(api_key="none", base_url="http://127.0.0.1:9")
                for part in parts:
                    getattr(made, part)
                made.close()


def _is_installed(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    places = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib"))
    return spec is not None and bool(spec.origin) and str(spec.origin).startswith(places)


def _threads() -> int:
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return threading.active_count()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _write(replies: int, line: str) -> None:
    data = line.encode() + b"\n"
    while data:
        data = data[os.write(replies, data) :]


def main(place: str, function: str, path: str) -> None:
    """Serve one agent; `path` is the JSON list of folders that modules come from."""
    sys.path[:] = json.loads(path)
    serve(ForkServer(Target(place, function)))


if __name__ == "__main__":
    main(*sys.argv[1:])
