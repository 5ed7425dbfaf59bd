"""The routes and the clients' keys. A handler passes the key's owner and the raw body to an operation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from rllm_core.errors import ConfigError
from rllm_serving.middleware import KeyRule, LimitBody, LoopbackNames, RequireKey, check_binding
from rllm_serving.tinker_additions import API, SUSPECTS_ROUTE, TENSORS_ROUTE
from rllm_tinker_server.fairness import LimitHeldBodies
from rllm_tinker_server.library import Library
from rllm_tinker_server.messages import RequestError
from rllm_tinker_server.owners import OWNER, FindOwner, Owner
from rllm_tinker_server.request_errors import (
    RETRY_AFTER,
    BusyError,
    NotFoundError,
    ServerError,
    UnsupportedFormatError,
    json_object,
    text_of,
)
from rllm_tinker_server.sampling import Sampling
from rllm_tinker_server.service import Service
from rllm_tinker_server.training import Training
from rllm_tinker_server.turns import Answer
from rllm_tinker_server.wire import PROTOBUF, json_answer, records

HEALTH = f"{API}/healthz"
FILES = f"{API}/files"
"""Path of downloads. They need no key, because their URLs are signed."""


def key_rule(keys: tuple[str, ...]) -> KeyRule:
    """Make the rule for requests' keys. Clients must send a key of `keys`. Without keys, it accepts every key."""
    return KeyRule(
        keys=keys,
        header="X-API-Key",
        variable="TINKER_API_KEY",
        example="tml-local",
        open_paths=(HEALTH, f"{FILES}/"),
    )


def check_keys(host: str, keys: tuple[str, ...]) -> None:
    """Raise ConfigError for a key that no client sends, and where other machines could reach a server without one."""
    check_binding(host, key_rule(keys))
    for number, key in enumerate(keys, 1):
        if not key.startswith(("tml-", "eyJ")):
            raise ConfigError(
                "bad-api-key",
                f"API key {number} of {len(keys)} does not start with tml-. Tinker clients never send such a key.",
                "Use a key such as tml-SOMETHING-LONG-AND-RANDOM in --api-key or TINKER_API_KEY.",
            )


OLDEST_CLIENT = "0.22.3"
"""The first version of tinker that can send every forward and backward pass as protobuf."""
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
LONGEST_NAME = 100
"""Letters of an operation that this server does not have."""
PAGE = 100
LARGEST_PAGE = 10_000
FINAL_SERVER_ERROR = 424
"""Status of internal errors. It is not a 5xx status, because clients would retry those for five minutes."""

Handler = Callable[[Request], Awaitable[Response]]
Operation = Callable[..., Answer | Awaitable[Answer]]


def create_app(service: Service, keys: tuple[str, ...] = ()) -> Starlette:
    """The server as an ASGI application. `keys`: the accepted keys. Without any, the server accepts every key."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        looking = asyncio.create_task(service.run_maintenance())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            await service.close()

    handlers: dict[Any, Any] = {
        RequestError: _handle_request_error,
        ClientDisconnect: _handle_disconnect,
        ServerError: _handle_server_error,
        HTTPException: _handle_http_error,
        Exception: _handle_exception,
    }
    app = Starlette(routes=_routes(service), lifespan=lifespan, exception_handlers=handlers)
    app.add_middleware(LimitBody, max_bytes=service.limits.max_body_bytes)
    app.add_middleware(
        LimitHeldBodies,
        max_held=service.limits.max_held_bytes,
        max_body=service.limits.max_body_bytes,
    )
    app.add_middleware(FindOwner, keys=keys)
    app.add_middleware(RequireKey, rule=key_rule(keys))
    if not keys:
        app.add_middleware(LoopbackNames, instead="Set TINKER_API_KEY, and any name will do.")
    return app


def _routes(service: Service) -> list[BaseRoute]:
    training, sampling, library = Training(service), Sampling(service), Library(service)

    async def retrieve_future(request: Request) -> Response:
        request_id = text_of(json_object(await request.body()), "request_id")
        service.sessions.touch(request_id, _owner(request))
        answer = await service.futures.wait(request_id, _owner(request))
        if answer is not None:
            return _response(answer)
        pending = {"type": "try_again", "request_id": request_id, "queue_state": "active"}
        return _response(json_answer(pending), 408)

    async def forward_backward(request: Request) -> Response:
        kind, body = request.headers.get("content-type", ""), await request.body()
        if kind.partition(";")[0].strip() != PROTOBUF:
            too_old = _old_client_error(f"forward_backward reads {PROTOBUF}, not {kind!r}")
            return _response(training.reject(_owner(request), "forward_backward", body, too_old))
        return _response(training.forward_backward(_owner(request), body))

    async def forward(request: Request) -> Response:
        too_old = _old_client_error("forward passes are sent to forward_backward")
        return _response(training.reject(_owner(request), "forward", await request.body(), too_old))

    async def anything_else(request: Request) -> Response:
        """The next requests of a model would wait for one that was rejected without taking its number."""
        error, operation = NotFoundError(_unsupported_operation(request)), request.path_params["operation"]
        return _response(training.reject(_owner(request), operation[:LONGEST_NAME], await request.body(), error))

    async def client_config(_: Request) -> Response:
        response = _response(records.client_config(service.limits))
        # Clients request this once, on a separate connection that they never close.
        response.headers["connection"] = "close"
        return response

    async def runs(request: Request) -> Response:
        return _response(library.training_run_list(_owner(request), *_page(request)))

    async def checkpoints(request: Request) -> Response:
        return _response(library.checkpoint_list(_owner(request), *_page(request)))

    async def download_urls(request: Request) -> Response:
        base = str(request.base_url.replace(path=FILES))
        return _response(library.download_urls(_owner(request), *request.path_params.values(), base=base))

    async def download(request: Request) -> Response:
        return FileResponse(library.download(**request.path_params, query=request.query_params))

    of_checkpoint = "/training_runs/{id}/checkpoints/{kind}/{name}"
    return [
        # The two that come by the thousand are found first.
        _post("/retrieve_future", retrieve_future),
        _post("/asample", _handler(sampling.submit)),
        _post("/forward_backward", forward_backward),
        _post("/optim_step", _handler(training.optim_step)),
        _post("/session_heartbeat", _handler(library.heartbeat)),
        _post("/save_weights_for_sampler", _handler(training.save_weights_for_sampler)),
        _post("/create_sampling_session", _handler(sampling.create_session)),
        _post("/cancel_future", _handler(sampling.cancel)),
        _post("/save_weights", _handler(training.save_weights)),
        _post("/save_weights_external", _handler(training.save_weights_external)),
        _post("/load_weights", _handler(training.load_weights)),
        _post("/create_model", _handler(training.create_model)),
        _post("/unload_model", _handler(training.unload_model)),
        _post("/get_info", _handler(library.model)),
        _post("/weights_info", _handler(library.weights_info)),
        _post("/forward", forward),
        _post("/client/config", client_config),
        _post("/client/dynamic_config", _constant(records.dynamic_config)),
        _post("/create_session", _handler(library.create_session)),
        _post(TENSORS_ROUTE, _handler(sampling.compare_tensors)),
        _post(SUSPECTS_ROUTE, _handler(sampling.score_suspects)),
        _post("/sessions/{id}/finish", _query(library.finish_session)),
        _post("/telemetry", _constant(records.telemetry_response)),
        _route("GET", "/samplers/{id}", _query(library.sampler)),
        _route("GET", "/sessions", _query(library.session_list)),
        _route("GET", "/sessions/{id}", _query(library.session)),
        _route("GET", "/get_server_capabilities", _constant(library.capabilities)),
        _route("GET", HEALTH.removeprefix(API), _constant(library.health)),
        _route("GET", "/training_runs", runs),
        _route("GET", "/training_runs/{id}", _query(library.training_run)),
        _route("GET", "/training_runs/{id}/checkpoints", _query(library.checkpoints_of)),
        _route("DELETE", of_checkpoint, _query(library.delete_checkpoint)),
        _route("PUT", f"{of_checkpoint}/ttl", _handler(library.set_expiry)),
        _post(f"{of_checkpoint}/publish", _query(library.publish_checkpoint)),
        _route("DELETE", f"{of_checkpoint}/publish", _query(library.unpublish_checkpoint)),
        _route("GET", f"{of_checkpoint}/external_weights_urls", download_urls),
        _route("GET", f"{FILES.removeprefix(API)}/{{id}}/{{kind}}/{{name}}/{{file}}", download),
        _route("GET", "/checkpoints", checkpoints),
        # Whatever is not above.
        Route(API + "/{operation:path}", anything_else, methods=METHODS),
    ]


def _route(method: str, path: str, handler: Handler) -> Route:
    return Route(API + path, handler, methods=[method])


def _post(path: str, handler: Handler) -> Route:
    return _route("POST", path, handler)


def _constant(operation: Callable[[], Answer]) -> Handler:
    """Make a handler for an answer that is the same for all clients."""

    async def handle(_: Request) -> Response:
        return _response(operation())

    return handle


def _query(operation: Operation) -> Handler:
    """Make a handler that passes the owner and the parameters of the path, in their order."""
    return _handler(operation, reads_body=False)


def _handler(operation: Operation, *, reads_body: bool = True) -> Handler:
    """Make a handler that passes the owner, the parameters of the path, in their order, and the body."""

    async def handle(request: Request) -> Response:
        body = [await request.body()] if reads_body else []
        answer = operation(_owner(request), *request.path_params.values(), *body)
        return _response(answer if isinstance(answer, Answer) else await answer)

    return handle


def _response(answer: Answer, status: int = 200) -> Response:
    return Response(answer.body, status, media_type=answer.media_type)


def _owner(request: Request) -> Owner:
    found: Owner = request.scope[OWNER]
    return found


def _unsupported_operation(request: Request) -> str:
    return f"This server does not do {request.method} {request.url.path}."


def _old_client_error(why: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(f"{why}: use a tinker client from {OLDEST_CLIENT} on (pip install --upgrade tinker).")


def _page(request: Request) -> tuple[int, int]:
    """Offset and limit of a list."""
    try:
        offset = int(request.query_params.get("offset", 0))
        limit = int(request.query_params.get("limit", PAGE))
    except ValueError as error:
        raise RequestError("offset and limit must be whole numbers.") from error
    return max(offset, 0), min(max(limit, 0), LARGEST_PAGE)


async def _handle_request_error(_: Request, error: RequestError) -> Response:
    response = _response(json_answer({"detail": str(error)}), error.status)
    if isinstance(error, BusyError):
        response.headers["retry-after"] = str(RETRY_AFTER)
    return response


async def _handle_disconnect(_: Request, __: ClientDisconnect) -> Response:
    """Return a response that no client reads: the client disconnected, or took too long to send its request."""
    return Response(status_code=400)


async def _handle_server_error(_: Request, error: ServerError) -> Response:
    return _response(json_answer({"detail": str(error)}), FINAL_SERVER_ERROR)


async def _handle_exception(request: Request, error: Exception) -> Response:
    detail = f"{request.url.path} failed on the server: {type(error).__name__}: {error}"
    return _response(json_answer({"detail": detail}), FINAL_SERVER_ERROR)


async def _handle_http_error(request: Request, error: HTTPException) -> Response:
    # Never 501: clients would ask again for minutes.
    detail = _unsupported_operation(request) if error.status_code in (404, 405) else error.detail
    return _response(json_answer({"detail": detail}), error.status_code)
