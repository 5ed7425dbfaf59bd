"""A process that starts agents: ``python -m rllm_gateway.running.fork_server MODULE FUNCTION PATH``.

Each rollout needs a separate process, because its session is in environment variables, and clients are often created
when a file is imported. Importing a client takes a second. So this process imports the installed packages that the
agent imports, and forks itself for each rollout. If an import has started threads, which a fork would lose, it starts
a new Python instead.

It reads lines ``{"start": number, "environment": …, "task": …, "reward_key": …, "log": …, "result": …}`` and
``{"kill": number}``, and writes ``ready``, then ``{"ended": number, "code": …}`` for each start. ``result`` is the file
for the function's result. It ends with its input. Its supervisor then kills all agents.
"""

from __future__ import annotations

import contextlib
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
from typing import Any, NoReturn

from rllm_gateway.running.calling import FAILED, call_and_leave
from rllm_gateway.running.target import Target, imported_packages
from rllm_serving.supervisor import end_supervised_command, supervise, supervise_command


class ForkServer:
    """Starts and ends processes that call an agent's function, with the agent's packages already imported."""

    def __init__(self, target: Target) -> None:
        self._target = target
        importlib.import_module("rllm_gateway.client")  # every agent's process needs it
        _import_packages(target)
        _warm_up()
        self._numbers: dict[int, int] = {}
        self.private: list[int] = []
        """File descriptors that agents must not inherit."""
        # A garbage collection in an agent would write to every page that it shares with this process.
        gc.collect()
        gc.freeze()
        # On macOS, system libraries break in a fork that does not execute anything.
        self.forks = sys.platform == "linux" and _threads() == 1
        """False if each agent needs a new Python."""

    def start(self, order: Mapping[str, Any]) -> None:
        """Start an agent."""
        pid = self._fork_agent(order) if self.forks else self._spawn_agent(order)
        self._numbers[pid] = order["start"]

    def kill(self, number: int) -> None:
        """Kill an agent and all processes that it has started. Do nothing if it has already ended."""
        for pid, known in self._numbers.items():
            if known == number:
                end_supervised_command(pid)

    def reap(self) -> list[tuple[int, int]]:
        """Return numbers and exit codes of ended agents. A negative code is the signal that killed the agent."""
        ended: list[tuple[int, int]] = []
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            number = self._numbers.pop(pid, None)
            if number is not None:
                ended.append((number, os.waitstatus_to_exitcode(status)))
        return ended

    def _fork_agent(self, order: Mapping[str, Any]) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            signal.set_wakeup_fd(-1)
            for descriptor in self.private:
                os.close(descriptor)
            supervise(parent, lambda: self._run_agent(order))
        finally:
            os._exit(FAILED)  # This process must not serve.

    def _become_agent(self, order: Mapping[str, Any]) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        # A function has its task as an argument, not on standard input.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  (the process's own)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
        os.environ.update(order["environment"])
        # Python seeds its own generator in every fork.
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()

    def _run_agent(self, order: Mapping[str, Any]) -> NoReturn:
        """Call the function in this process, and leave it."""
        code = FAILED
        try:
            self._become_agent(order)
            code = call_and_leave(self._target, order)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def _spawn_agent(self, order: Mapping[str, Any]) -> int:
        """Start the agent in a new Python, because a fork would lose threads. Returns its process id."""
        environment = {**os.environ, **order["environment"]}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        program = [sys.executable, "-P", "-m", "rllm_gateway.running.calling"]
        with Path(order["log"]).open("ab") as log:
            process = subprocess.Popen(
                supervise_command([*program, self._target.module, self._target.function]),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as orders:
            orders.write(json.dumps(order).encode())
        process.returncode = 0  # `reap` waits for it
        return process.pid


def _import_packages(target: Target) -> None:
    """Import the installed packages that the agent imports.

    The agent's own modules are not imported, because they may create clients at their import. Errors are ignored,
    because the same import fails again in the agent's process, which reports it.
    """
    for name in imported_packages(target):
        with contextlib.suppress(Exception, SystemExit):
            if _is_installed(name.partition(".")[0]):
                importlib.import_module(name)


def _warm_up() -> None:
    """Make clients of OpenAI and Anthropic and discard them, if the agent imports these packages.

    The first client in a process takes 100 ms, and later clients take 20 ms. Errors are ignored, because they occur
    again in the agent's process, which reports them.
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
    directories = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib"))
    return spec is not None and bool(spec.origin) and str(spec.origin).startswith(directories)


def serve(server: ForkServer, orders: int, responses: int) -> None:
    """Start and kill agents as the file `orders` orders, until it ends. Write answers to the file `responses`."""
    woken, waker = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    selector = selectors.PollSelector()  # needs no file descriptor
    server.private += [orders, responses, woken, waker]
    selector.register(orders, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    _write(responses, "ready")
    unread = b""
    while True:
        ready = {key.fd for key, _ in selector.select()}
        if woken in ready:
            os.read(woken, 4096)
        for number, code in server.reap():
            _write(responses, json.dumps({"ended": number, "code": code}))
        if orders in ready:
            data = os.read(orders, 1 << 20)
            if not data:
                return
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                server.start(order) if "start" in order else server.kill(order["kill"])


def _threads() -> int:
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return threading.active_count()


def _write(responses: int, line: str) -> None:
    data = line.encode() + b"\n"
    while data:
        data = data[os.write(responses, data) :]


def main(module: str, function: str, path: str) -> None:
    """Serve one agent. `path` is ``sys.path`` as a JSON list."""
    sys.path[:] = json.loads(path)
    orders, responses = os.dup(0), os.dup(1)
    # Packages that print at their import, and agents, write to a log. Their output must not mix with the answers.
    os.dup2(2, 1)
    serve(ForkServer(Target(module, function)), orders, responses)


if __name__ == "__main__":
    main(*sys.argv[1:])
