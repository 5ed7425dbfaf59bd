"""A process that imports packages once and forks itself for each agent. It needs only the standard library.

``PYTHON forking.py SETTINGS`` starts a Python program. PYTHON may be the Python of another virtual environment, without
rllm. SETTINGS is JSON with the fields of `ProgramServer`.

It reads lines ``{"start": number, "environment": …, "task": …, "log": …, "output": …}`` and ``{"kill": number}``, and
writes ``ready`` or ``ready without forks``, then ``{"ended": number, "code": …}`` for each start. It ends with its
input, and all agents end with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

FAILED = 1
PR_SET_PDEATHSIG = 1
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that keep libraries of numpy from starting threads at their import."""
OWN_FILES = (__file__, runpy.__file__, "<frozen runpy>")


class ForkedError(BaseException):
    """Raised in the process of a program, to leave the server's loop."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        super().__init__()
        self.order = order


class ForkingServer:
    """Starts and ends agents. Subclasses run them."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._libc = ctypes.CDLL(None) if sys.platform == "linux" else None
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
        pid = self._forked(order) if self.forks else self._spawned(order)
        self._numbers[pid] = order["start"]

    def kill(self, number: int) -> None:
        """Kill an agent and all processes that it has started. Do nothing if it has already ended."""
        for pid, known in self._numbers.items():
            if known == number:
                _kill_group(pid)

    def kill_all(self) -> None:
        for pid in self._numbers:
            _kill_group(pid)

    def reap(self) -> list[tuple[int, int]]:
        """Return numbers and exit codes of ended agents. A negative code is the signal that killed the agent."""
        ended: list[tuple[int, int]] = []
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            number = self._numbers.pop(pid, None)
            if number is not None:
                # Kill the processes that the agent has started and left running.
                _kill_group(pid)
                ended.append((number, os.waitstatus_to_exitcode(status)))
        return ended

    def _play(self, order: Mapping[str, Any]) -> NoReturn:
        """Run the agent in its own process, to the end."""
        raise NotImplementedError

    def _spawned(self, order: Mapping[str, Any]) -> int:
        """Start the agent in a new Python, because a fork would lose threads. Returns its process id."""
        raise NotImplementedError

    def _forked(self, order: Mapping[str, Any]) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.setpgid(pid, pid)  # the child does the same, because either may run first
            return pid
        try:
            self._become_agent(order, parent)
        except BaseException:  # noqa: BLE001  (this process must not serve)
            os._exit(FAILED)
        return self._play(order)

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
        output = os.open(order["output"], os.O_WRONLY | os.O_CREAT, 0o600) if "output" in order else log
        os.dup2(self._input(order), 0)
        os.dup2(output, 1)
        os.dup2(log, 2)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  (the process's own)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
        os.environ.update(order["environment"])
        # Python seeds its own generator in every fork.
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()

    def _input(self, order: Mapping[str, Any]) -> int:
        """Return a descriptor for the agent's standard input. A function has its task as an argument."""
        return os.open(os.devnull, os.O_RDONLY)


class ProgramServer(ForkingServer):
    """Starts a program of Python, with its packages imported."""

    def __init__(self, command: Sequence[str], options: int, preload: Sequence[str]) -> None:
        """Import packages.

        Args:
            command: the program's command line.
            options: number of words before its file or its ``-m``: Python, and Python's options.
            preload: names of modules.
        """
        self._command = list(command)
        self._words = self._command[options:]
        if not sys.flags.isolated and not getattr(sys.flags, "safe_path", False):
            is_module = self._words[0] == "-m"
            sys.path.insert(0, str(Path.cwd() if is_module else Path(self._words[0]).resolve().parent))
        before = {name: os.environ.get(name) for name in THREADS}
        os.environ.update({name: value or "1" for name, value in before.items()})
        for module in preload:
            importlib.import_module(module)
        for name in (name for name, value in before.items() if value is None):
            del os.environ[name]
        super().__init__()

    def run(self) -> None:
        """Run the program as ``__main__``, as Python does."""
        main = sys.modules["__main__"] = ModuleType("__main__")
        try:
            if self._words[0] == "-m":
                sys.argv = ["-m", *self._words[2:]]
                runpy._run_module_as_main(self._words[1])  # type: ignore[attr-defined]  # Python calls it for -m
            else:
                sys.argv = self._words
                main.__file__ = str(Path(self._words[0]).absolute())
                exec(compile(Path(main.__file__).read_bytes(), main.__file__, "exec"), main.__dict__)
        except SystemExit:
            raise
        except BaseException as error:  # noqa: BLE001  (a program may raise anything; Python would print it too)
            passed = error.__traceback__
            while passed is not None and passed.tb_frame.f_code.co_filename in OWN_FILES:
                passed = passed.tb_next  # the traceback starts in the program, as usual
            sys.excepthook(type(error), error.with_traceback(passed), passed)
            sys.exit(FAILED)

    def _play(self, order: Mapping[str, Any]) -> NoReturn:
        raise ForkedError(order)

    def _spawned(self, order: Mapping[str, Any]) -> int:
        task = self._input(order)
        with Path(order["log"]).open("ab") as log, Path(order["output"]).open("wb") as output:
            process = subprocess.Popen(
                self._command,
                stdin=task,
                stdout=output,
                stderr=log,
                env={**os.environ, **order["environment"]},
                start_new_session=True,
            )
        os.close(task)
        process.returncode = 0  # `reap` waits for it
        return process.pid

    def _input(self, order: Mapping[str, Any]) -> int:
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps(order["task"]).encode())
            file.seek(0)
            return os.dup(file.fileno())


def serve(server: ForkingServer) -> None:
    """Start and kill agents as the input orders, until the input ends."""
    woken, waker = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    asked, responses = os.dup(0), os.dup(1)
    # The output of an agent goes to its log, so that it does not mix with this process's answers.
    os.dup2(2, 1)
    selector = selectors.PollSelector()  # needs no file descriptor
    server.private += [asked, responses, woken, waker]
    selector.register(asked, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    _write(responses, "ready" if server.forks else "ready without forks")
    begun = b""
    while True:
        ready = {key.fd for key, _ in selector.select()}
        if woken in ready:
            os.read(woken, 4096)
        for number, code in server.reap():
            _write(responses, json.dumps({"ended": number, "code": code}))
        if asked in ready:
            data = os.read(asked, 1 << 20)
            if not data:
                server.kill_all()
                return
            *lines, begun = (begun + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                server.start(order) if "start" in order else server.kill(order["kill"])


def _threads() -> int:
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return threading.active_count()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _write(responses: int, line: str) -> None:
    data = line.encode() + b"\n"
    while data:
        data = data[os.write(responses, data) :]


def main(settings: str) -> None:
    """Serve one program."""
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [place for place in sys.path if place != here]
    responses = os.dup(1)
    os.dup2(2, 1)  # packages that print at their import write to the log
    server = ProgramServer(**json.loads(settings))
    os.dup2(responses, 1)
    os.close(responses)
    try:
        serve(server)
    except ForkedError:
        pass
    else:
        return
    server.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
