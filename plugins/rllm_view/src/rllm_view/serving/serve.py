"""Running the server on the main thread until a signal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rllm_serving.announcement import announce
from rllm_serving.http_server import HttpServer
from rllm_serving.listening import listen, url_of
from rllm_serving.until_stopped import Stop, serve_until
from rllm_view.api.answers import Answers
from rllm_view.api.library import Library
from rllm_view.serving.app import create_app


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Folders to serve, and address of the server."""

    folders: Sequence[Path]
    """Runs, and folders of runs."""
    key: str
    """Key that pages send."""
    port: int = 0
    """Port on 127.0.0.1. 0 means any free port."""
    announcement: Path | None = None
    """File to write the URL to, as JSON without the key."""


def serve(options: ServeOptions, ready: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code.

    Args:
        options: what and where.
        ready: told the URL of the pages, the key included, once requests are answered.

    Raises:
        ConfigError: the port is taken.
    """
    listening = listen(port=options.port)
    # Read before it closes. A fragment stays in the browser: no log and no referrer has it.
    url = f"{url_of(listening)}/#key={options.key}"
    library = Library(options.folders)

    def announced() -> None:
        if options.announcement is not None:
            announce(options.announcement, listening)
        ready(url)

    async def main() -> int:
        stop = Stop()
        server = HttpServer(create_app(Answers(library), options.key), listening)
        await serve_until(stop.event, server, announced, before_stopping=lambda: None)
        return stop.exit_code

    try:
        return asyncio.run(main())
    finally:
        library.close()
