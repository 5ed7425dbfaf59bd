"""The gateway's HTTP application."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from rllm_gateway.api import BLANK
from rllm_gateway.apis import ChatApi, CompletionsApi, GenerateApi, MessagesApi, ResponsesApi, TokensApi
from rllm_gateway.apis.chat import error_body
from rllm_gateway.apis.google import read_count
from rllm_gateway.endpoint import Endpoint, send_error
from rllm_gateway.fields import RefusedError
from rllm_gateway.gateway import Gateway
from rllm_gateway.small_endpoints import (
    health_endpoint,
    models_endpoint,
    reward_endpoint,
    tokens_endpoint,
)
from rllm_serving.body_limit import LimitBody
from rllm_serving.keys import LoopbackNames
from rllm_serving.listening import is_loopback

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
        ],
        redirect_slashes=False,
        default=_not_found,
    )
    app = LimitBody(router, gateway.limits.body_bytes)
    if not is_loopback(urlsplit(gateway.url).hostname or ""):
        return app

    def refusal(scope: Scope, why: str) -> bytes:
        return _error(scope["path"], RefusedError(403, "permission", why))

    return LoopbackNames(app, "Agents on other machines need a gateway with a different --host.", refusal)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    refused = RefusedError(404, "not_found", "There is nothing at this path.")
    await send_error(send, refused, _error(scope["path"], refused))


def _error(path: str, refused: RefusedError) -> bytes:
    """Return an error in the form of the API to which a path belongs."""
    if re.search(r"/v1(beta|alpha)/|:(generateContent|streamGenerateContent|countTokens)$", path):
        return GenerateApi.error(refused)
    return (MessagesApi.error if "/messages" in path else error_body)(refused)
