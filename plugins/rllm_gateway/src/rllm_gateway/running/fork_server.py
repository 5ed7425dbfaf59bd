"""A process that starts agents: ``python -m rllm_gateway.running.fork_server PLACE FUNCTION PATH``.

An agent's process must be its own, since its session is in the environment and clients are often made when a file is
imported. Importing a client takes a second; so this process imports the installed packages that the agent imports, and
forks itself for each attempt. Where an import has started threads, which a fork would lose, it starts a fresh Python.

Its input and output are as in `forking.py`; an order has ``result``, a file for the function's result."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import json
import os
import ssl
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from rllm_gateway.running.calling import FAILED, RESULT, call_and_leave
from rllm_gateway.running.forking import ForkingServer, serve
from rllm_gateway.running.target import Target, imported_packages

COPIES = 4
"""Clients of an agent that are spared it."""
ENVIRONMENT = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")
MAKERS = (("httpcore2", "default_ssl_context"), ("ssl", "create_default_context"))
"""Functions that make contexts, those first that call others."""


def warm_up_with_contexts(warm_up: Callable[[], None]) -> None:
    """Call `warm_up`, and keep contexts like those that were made in it for the forks of this process."""
    warm_up()  # clients import what makes their contexts when they make the first one
    makers = [_Maker(sys.modules[module], name) for module, name in MAKERS if module in sys.modules]
    warm_up()
    for maker in makers:
        maker.make_ahead()


class _Maker:
    """Stands for a function that makes contexts."""

    def __init__(self, module: ModuleType, name: str) -> None:
        self._module, self._name = module, name
        self._make = getattr(module, name)
        self._class = ssl.SSLContext
        self._asked: dict[Any, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._ready: dict[Any, list[Any]] = {}
        setattr(module, name, functools.wraps(self._make)(lambda *given, **named: self(given, named)))

    def __call__(self, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        key = (given, *sorted(named.items()), *map(os.environ.get, ENVIRONMENT))
        ready = self._ready.get(key)
        # Whoever has put another class in its place wants contexts of that.
        if ready and ssl.SSLContext is self._class:
            return ready.pop()
        if ready is None:
            self._asked[key] = (given, named)
        return self._make(*given, **named)

    def make_ahead(self) -> None:
        """Make what was asked for once more; where nothing was, the function is itself again."""
        if not self._asked:
            setattr(self._module, self._name, self._make)
        for key, (given, named) in self._asked.items():
            self._ready[key] = [self._make(*given, **named) for _ in range(COPIES)]


class ForkServer(ForkingServer):
    """Starts an agent's function, with its packages imported."""

    def __init__(self, target: Target) -> None:
        self._target = target
        importlib.import_module("rllm_gateway.client")  # what every agent's process needs
        _import_installed(target)
        warm_up_with_contexts(_warm_up)
        super().__init__()

    def _play(self, order: Mapping[str, Any]) -> NoReturn:
        code = FAILED
        try:
            code = call_and_leave(self._target, order["task"], Path(order["result"]))
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

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


def main(place: str, function: str, path: str) -> None:
    """Serve one agent; `path` is the JSON list of folders that modules come from."""
    sys.path[:] = json.loads(path)
    serve(ForkServer(Target(place, function)))


if __name__ == "__main__":
    main(*sys.argv[1:])
