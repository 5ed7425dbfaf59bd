"""The process that serves an environment's application: ``python -m rllm_envs.openenv.local_server MODULE:NAME``.

It answers the first line of its input with its address. The process is separate because
environments use global random numbers, and print.
"""

from __future__ import annotations

import asyncio
import os
import sys
from importlib import import_module
from typing import Any

from rllm_serving.http_server import HttpServer
from rllm_serving.listening import listen, url_of


def main(application: str) -> None:
    """Serve until the process is killed."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    # Text that an environment prints is no answer.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def write(line: str) -> None:
        answers.write(line + "\n")
        answers.flush()

    module, _, name = application.rpartition(":")
    try:
        app = getattr(import_module(module), name)
    except Exception as error:  # noqa: BLE001  (a module raises anything)
        write(" ".join(f"{type(error).__name__}: {error}".split()))
        return
    asyncio.run(_serve(app, write))


async def _serve(app: Any, write: Any) -> None:
    listening = listen()
    url = url_of(listening)
    server = HttpServer(app, listening, lifespan="on")
    await server.start()
    write("ready")
    asked = await asyncio.to_thread(sys.stdin.readline)
    write(f"{asked.partition(' ')[0]} {url}")
    await server.wait_until_end()


if __name__ == "__main__":
    main(sys.argv[1])
