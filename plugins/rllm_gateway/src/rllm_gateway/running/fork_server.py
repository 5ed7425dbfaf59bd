"""A process that starts agents: ``python -m rllm_gateway.running.fork_server PLACE FUNCTION PATH``.

Each rollout needs a separate process, because its session is in environment variables, and clients are often created
when a file is imported. Importing a client takes a second. So this process imports the installed packages that the
agent imports, and forks itself for each rollout. If an import has started threads, which a fork would lose, it starts
a new Python instead.

Input and output are described in `forking.py`. An order also has ``result``, a file for the function's result.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from rllm_gateway.running.calling import FAILED, RESULT, call_and_leave
from rllm_gateway.running.forking import ForkingServer, serve
from rllm_gateway.running.target import Target, imported_packages


class ForkServer(ForkingServer):
    """Starts an agent's function in a process that has already imported the agent's packages."""

    def __init__(self, target: Target) -> None:
        self._target = target
        importlib.import_module("rllm_gateway.client")  # every agent's process needs it
        _import_installed(target)
        _warm_up()
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
    places = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib"))
    return spec is not None and bool(spec.origin) and str(spec.origin).startswith(places)


def main(place: str, function: str, path: str) -> None:
    """Serve one agent. `path` is ``sys.path`` as a JSON list."""
    sys.path[:] = json.loads(path)
    serve(ForkServer(Target(place, function)))


if __name__ == "__main__":
    main(*sys.argv[1:])
