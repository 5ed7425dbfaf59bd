"""What clients ask beside replies: the names of models, the size of a prompt; and rewards, which agents give."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from rllm_gateway.apis import ChatApi, MessagesApi
from rllm_gateway.exchange import Api
from rllm_gateway.fields import json_object
from rllm_gateway.gateway import Gateway
from rllm_gateway.http import ClientGoneError, Head, head_of, read_body, send_error, send_json
from rllm_gateway.live_session import LiveSession
from rllm_gateway.refusals import RefusedError, invalid
from rllm_gateway.rendering import render
from rllm_gateway.session_endpoints import answering

EPOCH = "1970-01-01T00:00:00Z"
Respond = Callable[[LiveSession, Head, Receive], Awaitable[Any]]
"""To the JSON that is answered."""


def health_endpoint() -> ASGIApp:
    """``GET /health``, without a key: requests are answered."""

    async def respond(scope: Scope, receive: Receive) -> Any:
        return {"status": "ok"}

    return answering("GET", respond)


def models_endpoint(gateway: Gateway) -> ASGIApp:
    """``GET …/models`` lists the only model. ``GET …/models/ID`` returns it under any name, as requests may name it."""

    async def respond(session: LiveSession, head: Head, receive: Receive) -> Any:
        name = (await gateway.attached()).model
        if head.model is not None:
            return _model(head.model)
        return {"object": "list", "data": [_model(name)], "has_more": False, "first_id": name, "last_id": name}

    return _Simple(gateway, ChatApi(), "GET", respond)


def _model(name: str) -> dict[str, Any]:
    """With the fields of OpenAI's and of Anthropic's API."""
    of_openai = {"id": name, "object": "model", "created": 0, "owned_by": "rllm"}
    return of_openai | {"type": "model", "display_name": name, "created_at": EPOCH, "lifecycle": "active"}


def reward_endpoint(gateway: Gateway) -> ASGIApp:
    """``POST …/reward`` with ``{"reward": 1.0}``: of the role in the path."""

    async def respond(session: LiveSession, head: Head, receive: Receive) -> Any:
        value = json_object(await read_body(receive)).get("reward")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise invalid("reward must be a number.", "reward")
        _require_heard(session, head.role)
        await gateway.add_reward(session, head.role, float(value))
        return {"role": head.role, "reward": float(value)}

    return _Simple(gateway, ChatApi(), "POST", respond)


def _require_heard(session: LiveSession, role: str) -> None:
    """Raise RefusedError if only other roles made calls, because no trajectory would get the reward.

    The calls may come from a client that was created outside the role's session.
    """
    names = {call.name for call in session.calls.values() if call.name is not None}
    heard = session.roles | names
    if heard and role not in heard:
        known = ", ".join(map(repr, sorted(heard)))
        raise RefusedError(
            409,
            "conflict",
            f"No call was made in role {role!r}, so its reward would count for nothing. Calls were made in {known}. "
            f"Only clients from get_chat_client follow session({role!r}). Create other clients inside it: "
            f"`with session({role!r}) as made: Anthropic(base_url=made.anthropic_url)`.",
            code="no_calls_in_role",
        )


def tokens_endpoint(gateway: Gateway) -> ASGIApp:
    """``POST …/messages/count_tokens``: how long the prompt would be."""
    api = MessagesApi()

    async def respond(session: LiveSession, head: Head, receive: Receive) -> Any:
        asked = api.read(json_object(await read_body(receive)), session.spec.unsupported)
        asked = replace(asked, role=head.role)
        renderer = (await gateway.attached()).renderer
        place = session.place(asked)
        session.refuse_too_long(asked)
        prompt_ids, _ = await render(session, place, asked, renderer)
        return {"input_tokens": len(prompt_ids)}

    return _Simple(gateway, api, "POST", respond)


class _Simple:
    """Answers a request of a session with a little JSON."""

    def __init__(self, gateway: Gateway, api: Api, method: str, respond: Respond) -> None:
        self._gateway = gateway
        self._api = api
        self._method = method
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["method"] != self._method:
                raise RefusedError(405, "invalid", f"Requests of this path are sent with {self._method}.")
            head = head_of(scope)
            session = self._gateway.session(head.session, head.key)
            body = orjson.dumps(await self._respond(session, head, receive))
        except RefusedError as refused:
            await send_error(send, refused, self._api.error(refused))
        except ClientGoneError:
            return
        else:
            await send_json(send, body)
