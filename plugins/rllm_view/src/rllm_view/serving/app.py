"""The HTTP application. Any user of this machine may load the pages, but answers need the key."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from rllm_core.errors import RllmError
from rllm_serving.keys import KeyRule, LoopbackNames, RequireKey
from rllm_view.api.answers import Answers
from rllm_view.api.as_json import as_json
from rllm_view.api.library import NotFoundError
from rllm_view.pages.assets import PAGE, assets
from rllm_view.serving.headers import SafeHeaders

KEY_HEADER = "X-RLLM-View-Key"
KEY_VARIABLE = "RLLM_VIEW_KEY"
METHODS = ("GET", "HEAD")
INSTEAD = "From another machine, forward a port: ssh -L 8000:127.0.0.1:PORT."


def create_app(answers: Answers, key: str) -> ASGIApp:
    """The application.

    Args:
        answers: what it serves.
        key: what a page sends in `KEY_HEADER`. A cookie would go with requests that a foreign page makes.
    """
    rule = KeyRule(key=key, header=KEY_HEADER, variable=KEY_VARIABLE, example="a-long-random-word")
    router = Router(
        [
            Mount("/api", app=RequireKey(_Api(answers), rule)),
            Route("/", _page, methods=["GET"]),
            Route("/assets/{name}", _asset, methods=["GET"]),
        ],
        redirect_slashes=False,
        default=_nothing,
    )
    return LoopbackNames(SafeHeaders(router), INSTEAD)


class _Api:
    """Reads files on threads: a slow disk holds up no other answer."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if request.method not in METHODS:
            await _not_allowed(request.method)(scope, receive, send)
            return
        # `path` is the whole one; starlette before 0.35 had only what is below the mount.
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


async def _page(request: Request) -> Response:
    return Response(assets()[PAGE].body, media_type="text/html")


async def _asset(request: Request) -> Response:
    found = assets().get(request.path_params["name"])
    if found is None:
        return _not_there()
    return Response(found.body, media_type=found.media_type)


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    await _not_there()(scope, receive, send)


def _not_there() -> Response:
    return JSONResponse({"message": "There is nothing at this path.", "hint": "The pages begin at /."}, 404)


def _not_allowed(method: str) -> Response:
    body = {"message": f"Nothing here takes {method}.", "hint": "Answers are read with GET."}
    return JSONResponse(body, 405, {"Allow": ", ".join(METHODS)})
