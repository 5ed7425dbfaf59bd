"""The pages and their data over HTTP, and metrics of the running runs for Prometheus (``GET /metrics``).

Any user of this machine may load the pages, but the data need the key.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rllm_core.errors import RllmError
from rllm_record.pending import read_pending
from rllm_record.run_files import read_status
from rllm_serving.http_server import HttpServer, Stop, serve_until
from rllm_serving.listening import announce, listen, url_of
from rllm_serving.middleware import KeyRule, LoopbackNames, RequireKey
from rllm_serving.prometheus import CONTENT_TYPE, GaugeMetricFamily, gauge_name, write_text
from rllm_view.answers import Answers, Library, NotFoundError
from rllm_view.as_json import as_json
from rllm_view.pages import PAGE, assets
from rllm_view.reading.run import Run, last_values


def families(runs: Iterable[Run]) -> Iterator[GaugeMetricFamily]:
    """Yield the latest value of each metric, and the numbers of pending rollouts."""
    running = {run.place.name: run for run in runs if is_running(run)}
    pending = GaugeMetricFamily("rllm_pending_rollouts", "Number of rollouts in progress.", labels=("run",))
    by_part = GaugeMetricFamily(
        "rllm_pending_rollouts_by_part",
        "Number of the 200 longest waits, by the part that they wait for.",
        labels=("run", "waits_for"),
    )
    longest = GaugeMetricFamily(
        "rllm_longest_wait_start_time_seconds", "Start of the longest wait of a rollout.", labels=("run",)
    )
    for name, run in running.items():
        content = read_pending(run.place.directory)
        pending.add_metric((name,), content.total)
        for part, number in Counter(row.waits_for for row in content.rows).items():
            by_part.add_metric((name, part), number)
        for row in content.rows[:1]:
            longest.add_metric((name,), row.since)
    yield from (pending, by_part, longest)
    yield from _metric_families({name: last_values(run.lines()) for name, run in running.items()})


def is_running(run: Run) -> bool:
    """Return True if a process still writes the run."""
    status = read_status(run.place.directory)
    return status is not None and status.status == "running"


def _metric_families(values: Mapping[str, Mapping[str, float]]) -> Iterator[GaugeMetricFamily]:
    """Yield a family for each metric of any run. Metrics with the same valid name are shown once."""
    originals: dict[str, str] = {}
    for metric in sorted({metric for each in values.values() for metric in each}):
        originals.setdefault(gauge_name(metric), metric)
    for name, metric in originals.items():
        family = GaugeMetricFamily(name, f"Metric {metric} of the latest step that has it.", labels=("run",))
        for run, each in values.items():
            if metric in each:
                family.add_metric((run,), each[metric])
        yield family


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Content security policy: only rllm-view's scripts, no text as HTML, no requests to other machines."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Answers grow with the run, and pages change with the version.
    "cache-control": "no-store",
}
_ENCODED = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


class SafeHeaders:
    """Adds `HEADERS` to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *_ENCODED]}
            await send(message)

        await self._app(scope, receive, send_safely)


KEY_HEADER = "X-RLLM-View-Key"
KEY_VARIABLE = "RLLM_VIEW_KEY"
METHODS = ("GET", "HEAD")
INSTEAD = "From a different machine, forward a port: ssh -L 8000:127.0.0.1:PORT."


def create_app(answers: Answers, key: str) -> ASGIApp:
    """Return the application.

    Args:
        answers: the answers to serve.
        key: the key that a page sends in `KEY_HEADER`. Browsers would send a cookie also for a foreign page.
    """
    rule = KeyRule(keys=(key,), header=KEY_HEADER, variable=KEY_VARIABLE, example="a-long-random-word")
    # Prometheus sends this header with `authorization: {credentials: KEY}`.
    scraping = replace(rule, keys=(f"Bearer {key}",), header="Authorization")
    router = Router(
        [
            Mount("/api", app=RequireKey(_Api(answers), rule)),
            Route("/metrics", RequireKey(_Metrics(answers.library), scraping), methods=["GET"]),
            Route("/", _page, methods=["GET"]),
            Route("/assets/{name}", _asset, methods=["GET"]),
        ],
        redirect_slashes=False,
        default=_answer_missing_path,
    )
    return LoopbackNames(SafeHeaders(router), INSTEAD)


class _Api:
    """Reads files on threads, so that a slow disk does not delay other answers."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if request.method not in METHODS:
            await _method_response(request.method)(scope, receive, send)
            return
        # `path` is the whole path. In starlette before 0.35 it was only the part below the mount.
        path = scope["path"].removeprefix(scope.get("root_path", "")).strip("/")
        response = await run_in_threadpool(self._answer, path, dict(request.query_params))
        await response(scope, receive, send)

    def _answer(self, path: str, query: dict[str, str]) -> Response:
        try:
            body = as_json(self._answers.answer(path, query))
        except RllmError as error:
            status = 404 if isinstance(error, NotFoundError) else 400
            return JSONResponse({"message": error.message, "hint": error.hint}, status)
        return Response(body, media_type="application/json")


class _Metrics:
    """Answers of ``/metrics`` for Prometheus. It is a class, because Starlette wraps plain functions."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await run_in_threadpool(lambda: write_text(families(self._library.runs())))
        await Response(body, media_type=CONTENT_TYPE)(scope, receive, send)


async def _page(request: Request) -> Response:
    return Response(assets()[PAGE].body, media_type="text/html")


async def _asset(request: Request) -> Response:
    found = assets().get(request.path_params["name"])
    if found is None:
        return _missing_path_response()
    return Response(found.body, media_type=found.media_type)


async def _answer_missing_path(scope: Scope, receive: Receive, send: Send) -> None:
    await _missing_path_response()(scope, receive, send)


def _missing_path_response() -> Response:
    return JSONResponse({"message": "This path does not exist.", "hint": "The pages start at /."}, 404)


def _method_response(method: str) -> Response:
    body = {"message": f"{method} is not supported.", "hint": "Use GET."}
    return JSONResponse(body, 405, {"Allow": ", ".join(METHODS)})


def serve(
    directories: Sequence[Path],
    key: str,
    ready: Callable[[str], None],
    *,
    port: int = 0,
    announcement: Path | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code.

    Args:
        directories: runs, and directories of runs.
        key: key that pages send.
        ready: receives the URL of the pages with the key, when the server answers requests.
        port: port on 127.0.0.1. 0 means any free port.
        announcement: file to write the URL to, as JSON without the key. None: no file.

    Raises:
        ConfigError: the port is taken.
    """
    listening = listen(port=port)
    # Read the URL before the socket closes. A fragment stays in the browser, so no log and no referrer contains it.
    url = f"{url_of(listening)}/#key={key}"
    library = Library(directories)

    def announce_url() -> None:
        if announcement is not None:
            announce(announcement, listening)
        ready(url)

    async def main() -> int:
        stop = Stop()
        server = HttpServer(create_app(Answers(library), key), listening)
        await serve_until(stop.event, server, announce_url, before_stopping=lambda: None)
        return stop.exit_code

    try:
        return asyncio.run(main())
    finally:
        library.close()
