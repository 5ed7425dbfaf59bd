"""The gateway's HTTP application, with the endpoints for models, sizes of prompts, and rewards."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import orjson
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from rllm_gateway.apis import ChatApi, CompletionsApi, GenerateApi, MessagesApi, ResponsesApi, TokensApi
from rllm_gateway.apis.chat import error_body
from rllm_gateway.apis.exchange import BLANK, ClientGoneError, ModelRequest
from rllm_gateway.apis.fields import RefusedError, invalid, json_object
from rllm_gateway.apis.google import read_count
from rllm_gateway.sampling.rendering import render
from rllm_gateway.serving.endpoint import Endpoint, Head, head_of, read_body, send_error, send_json
from rllm_gateway.serving.gateway import Gateway
from rllm_gateway.sessions.live_session import LiveSession
from rllm_serving.listening import is_loopback
from rllm_serving.middleware import LimitBody, LoopbackNames
from rllm_serving.prometheus import CONTENT_TYPE, GaugeMetricFamily, gauge_name, write_text

BASE_OF_ROLE = "/s/{session}/{role}"
"""Base path for vLLM's token route and Google's clients, and for clients of Anthropic's API that do not add ``/v1``."""
BASE = f"{BASE_OF_ROLE}/v1"


def create_app(gateway: Gateway) -> ASGIApp:
    """Make the application.

    If the gateway listens on a loopback address, requests with any other host name are rejected, because they come from
    a web page.

    Args:
        gateway: the gateway that answers requests.
    """
    chat, responses, messages = ChatApi(), ResponsesApi(), MessagesApi()
    google: dict[str, ASGIApp] = {
        "generateContent": Endpoint(gateway, GenerateApi()),
        "streamGenerateContent": Endpoint(gateway, GenerateApi(streamed=True), BLANK),
        "countTokens": tokens_endpoint(gateway, "totalTokens", read_count, GenerateApi.error),
    }
    router = Router(
        [
            Route(f"{BASE}/chat/completions", Endpoint(gateway, chat)),
            Route(f"{BASE}/completions", Endpoint(gateway, CompletionsApi())),
            Route(f"{BASE}/responses", Endpoint(gateway, responses)),
            Route(f"{BASE_OF_ROLE}/inference/v1/generate", Endpoint(gateway, TokensApi())),
            # These come before the paths of models, which match them too.
            *(
                Route(f"{BASE_OF_ROLE}/{version}/models/{{model:path}}:{method}", endpoint)
                for version in ("v1", "v1beta", "v1alpha")
                for method, endpoint in google.items()
            ),
            *(
                route
                for base in (BASE, BASE_OF_ROLE)
                for route in (
                    Route(f"{base}/messages", Endpoint(gateway, messages)),
                    Route(
                        f"{base}/messages/count_tokens",
                        tokens_endpoint(gateway, "input_tokens", messages.read, messages.error),
                    ),
                    Route(f"{base}/models", models_endpoint(gateway)),
                    Route(f"{base}/models/{{model:path}}", models_endpoint(gateway)),
                )
            ),
            Route(f"{BASE}/reward", reward_endpoint(gateway)),
            Route("/health", health_endpoint()),
            Route("/metrics", _Metrics(gateway)),
        ],
        redirect_slashes=False,
        default=_reject_path,
    )
    app = LimitBody(router, gateway.limits.body_bytes)
    if not is_loopback(urlsplit(gateway.url).hostname or ""):
        return app

    def refusal(scope: Scope, why: str) -> bytes:
        return _error(scope["path"], RefusedError(403, "permission", why))

    return LoopbackNames(app, "Agents on other machines need a gateway with a different --host.", refusal)


async def _reject_path(scope: Scope, receive: Receive, send: Send) -> None:
    refused = RefusedError(404, "not_found", "There is nothing at this path.")
    await send_error(send, refused, _error(scope["path"], refused))


def _error(path: str, refused: RefusedError) -> bytes:
    """Return an error in the form of the API to which a path belongs."""
    if re.search(r"/v1(beta|alpha)/|:(generateContent|streamGenerateContent|countTokens)$", path):
        return GenerateApi.error(refused)
    return (MessagesApi.error if "/messages" in path else error_body)(refused)


EPOCH = "1970-01-01T00:00:00Z"
Respond = Callable[[Scope, Receive], Awaitable[Any]]
"""Returns the JSON data of the answer."""
RespondInSession = Callable[[LiveSession, Head, Receive], Awaitable[Any]]


def health_endpoint() -> ASGIApp:
    """Make ``GET /health``, which needs no key and answers 200."""

    async def respond(scope: Scope, receive: Receive) -> Any:
        return {"status": "ok"}

    return _Answering("GET", respond)


class _Metrics:
    """Answers of ``GET /metrics`` for Prometheus: numbers of sessions and requests, which need no key."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gauges = {
            "gateway_open_sessions": ("Number of open sessions: rollouts in progress.", self._gateway.open_sessions),
            "gateway_requests_in_flight": ("Number of requests in progress.", self._gateway.in_flight),
            "gateway_is_attached": ("1 if a run answers model calls, else 0.", self._gateway.is_attached),
        }
        body = write_text(GaugeMetricFamily(gauge_name(name), *gauge) for name, gauge in gauges.items())
        await Response(body, media_type=CONTENT_TYPE)(scope, receive, send)


def models_endpoint(gateway: Gateway) -> ASGIApp:
    """Make ``GET …/models``, which lists the only model, and ``GET …/models/ID``, which returns it under any name."""

    async def respond(session: LiveSession, head: Head, receive: Receive) -> Any:
        name = (await gateway.wait_for_policy()).model
        if head.model is not None:
            return _model(head.model)
        return {"object": "list", "data": [_model(name)], "has_more": False, "first_id": name, "last_id": name}

    return _in_session(gateway, "GET", respond)


def _model(name: str) -> dict[str, Any]:
    """Return the model's description, with the fields of both OpenAI's and Anthropic's API."""
    of_openai = {"id": name, "object": "model", "created": 0, "owned_by": "rllm"}
    return of_openai | {"type": "model", "display_name": name, "created_at": EPOCH, "lifecycle": "active"}


def reward_endpoint(gateway: Gateway) -> ASGIApp:
    """Make ``POST …/reward`` with ``{"reward": 1.0}``, which sets the reward of the role in the path.

    It needs the session's reward key too, because each command that the model writes can have the session's key.
    """

    async def respond(session: LiveSession, head: Head, receive: Receive) -> Any:
        session.refuse_reward(head.reward_key)
        value = json_object(await read_body(receive)).get("reward")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise invalid("reward must be a number.", "reward")
        _require_calls_of_role(session, head.role)
        await gateway.add_reward(session, head.role, float(value))
        return {"role": head.role, "reward": float(value)}

    return _in_session(gateway, "POST", respond)


def _require_calls_of_role(session: LiveSession, role: str) -> None:
    """Raise RefusedError if only other roles made calls, because no trajectory would get the reward.

    The calls may come from a client that was created outside the role's session.
    """
    names = {call.name for call in session.calls.values() if call.name is not None}
    roles_with_calls = session.roles | names
    if roles_with_calls and role not in roles_with_calls:
        known = ", ".join(map(repr, sorted(roles_with_calls)))
        raise RefusedError(
            409,
            "conflict",
            f"No call was made in role {role!r}, so its reward would have no effect. Calls were made in {known}. "
            f"Only clients from get_chat_client follow session({role!r}). Create other clients inside it: "
            f"`with session({role!r}) as made: Anthropic(base_url=made.anthropic_url)`.",
            code="no_calls_in_role",
        )


def tokens_endpoint(
    gateway: Gateway, name: str, read: Callable[[Any, Any], ModelRequest], error: Callable[[RefusedError], bytes]
) -> ASGIApp:
    """Make an endpoint that returns the number of tokens of the prompt, as `name`."""

    async def respond(session: LiveSession, head: Head, receive: Receive) -> Any:
        request = read(json_object(await read_body(receive)), session.spec.unsupported)
        renderer = (await gateway.wait_for_policy()).renderer
        request = session.locate(replace(request, role=head.role))
        session.refuse_too_long(request)
        prompt_ids, _ = await render(session, request, renderer)
        return {name: len(prompt_ids)}

    return _in_session(gateway, "POST", respond, error)


def _in_session(
    gateway: Gateway, method: str, respond: RespondInSession, error: Callable[[RefusedError], bytes] = error_body
) -> ASGIApp:
    async def answer_request(scope: Scope, receive: Receive) -> Any:
        head = head_of(scope)
        return await respond(gateway.session(head.session, head.key), head, receive)

    return _Answering(method, answer_request, error)


class _Answering:
    """Answers requests of one HTTP method with JSON. It is a class, because Starlette wraps plain functions."""

    def __init__(self, method: str, respond: Respond, error: Callable[[RefusedError], bytes] = error_body) -> None:
        self._method = method
        self._respond = respond
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["method"] != self._method:
                raise RefusedError(405, "invalid", f"Requests of this path are sent with {self._method}.")
            body = orjson.dumps(await self._respond(scope, receive))
        except RefusedError as refused:
            await send_error(send, refused, self._error(refused))
        except ClientGoneError:
            return
        else:
            await send_json(send, body)
