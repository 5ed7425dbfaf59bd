"""For agents that say more than environment variables can: roles, rewards, sessions of one's own."""

from __future__ import annotations

import io
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

DEFAULT_ROLE = "agent"
GATEWAY = "http://127.0.0.1:4000"
"""Where a gateway listens unless it is told otherwise."""
TOKEN_FILE = Path("~/.rllm/gateway.token")
METADATA_HEADER = "X-Rllm-Metadata"
NO_GATEWAY = "what answers at {url} is no gateway: start one with `rllm gateway serve --model …`, or give another url"
ROLE = re.compile(r"(?!(?:\.{1,2}|v1)$)[A-Za-z0-9._~-]{1,64}")
"""Clients remove '.' and '..' from a path. Anthropic's clients add 'v1' to the URL of a session without a role."""
_CURRENT: ContextVar[Session | None] = ContextVar("rllm_session", default=None)


@dataclass(frozen=True)
class Session:
    """The session of one attempt, seen by its agent."""

    url: str
    """Without a role."""
    key: str
    role: str = DEFAULT_ROLE
    metadata: Mapping[str, Any] | None = None
    """Goes with every call of clients of `get_chat_client`; ``rllm.sdk.processing`` says which keys count."""

    @property
    def openai_url(self) -> str:
        """``base_url`` of OpenAI's client."""
        return f"{self.url}/{self.role}/v1"

    @property
    def anthropic_url(self) -> str:
        """``base_url`` of Anthropic's client."""
        return f"{self.url}/{self.role}"

    def with_role(self, role: str) -> Session:
        """The same session in another role: calls of each role make a trajectory."""
        return replace(self, role=role)

    def reward(self, value: float) -> None:
        """Say how good this role was; the last value counts.

        Raises:
            urllib.error.HTTPError: the gateway refuses it, with its reason as the body.
        """
        _ask("POST", f"{self.url}/{self.role}/v1/reward", self.key, {"reward": value})

    def end(self) -> None:
        """End a session that `open_session` opened: its calls and rewards are refused from here on.

        Raises:
            urllib.error.HTTPError: as `reward`.
        """
        _ask("DELETE", self.url, self.key)


def open_session(
    task: Mapping[str, Any] | None = None, *, task_id: str = "", url: str = GATEWAY, token: str | None = None
) -> Session:
    """Open a session at a gateway that serves a model (``rllm gateway serve --model``). `Session.end` ends it.

    Args:
        task: what the session is about, JSON data. Sessions about the same are compared with each other.
        task_id: name of the task, where its data do not tell it.
        url: of the gateway.
        token: its admin token; None: that of this user's file, ``~/.rllm/gateway.token``.

    Raises:
        OSError: there is no gateway, or no token.
        urllib.error.HTTPError: the gateway refuses it, with its reason as the body.
    """
    if token is None:
        token = TOKEN_FILE.expanduser().read_text(encoding="utf-8").strip()
    opened = _ask("POST", f"{url}/sessions", token, {"task": dict(task or {}), "task_id": task_id})
    return Session(opened["url"], opened["key"])


@contextmanager
def deployed_session(task: Mapping[str, Any] | None = None, **where: Any) -> Iterator[Session]:
    """A session of `open_session`, which takes the same; clients inside belong to it, and it ends with the context."""
    opened = open_session(task, **where)
    token = _CURRENT.set(opened)
    try:
        yield opened
    finally:
        _CURRENT.reset(token)
        opened.end()


def current_session() -> Session:
    """The session of this process or of the enclosing `session`.

    Raises:
        RuntimeError: nobody has opened one: the agent was not started by ``rllm``.
    """
    if (opened := _CURRENT.get()) is not None:
        return opened
    try:
        return Session(os.environ["RLLM_SESSION_URL"], os.environ["OPENAI_API_KEY"])
    except KeyError as error:
        raise RuntimeError(f"{error.args[0]} is not set: run the agent by `rllm train --agent`") from error


@contextmanager
def session(role: str | None = None, **metadata: Any) -> Iterator[Session]:
    """Calls inside, of clients of `get_chat_client`, have this role and this metadata; nested ones add to it.

    To give the role to a different client, create it with a URL of the yielded session, for example
    ``Anthropic(base_url=made.anthropic_url)``.

    Raises:
        RuntimeError: as `current_session`.
        ValueError: the role cannot be part of a URL.
    """
    outer = current_session()
    if role is not None and not ROLE.fullmatch(role):
        raise ValueError(
            f"the role {role!r:.80} is not 1 to 64 letters, digits, '-', '_', '.' and '~', or is '.' or '..'"
        )
    made = replace(outer, role=role or outer.role, metadata={**(outer.metadata or {}), **metadata})
    token = _CURRENT.set(made)
    try:
        yield made
    finally:
        _CURRENT.reset(token)


def reward(value: float, role: str = DEFAULT_ROLE) -> None:
    """Say how good the attempt was in a role; see `Session.reward`. A role without a call is refused."""
    current_session().with_role(role).reward(value)


def get_chat_client(**options: Any) -> Any:
    """An ``openai.OpenAI``. Each call belongs to the session that it is made in, whenever the client was made.

    A call that is made in no `session`, as in a thread, belongs to that in which the client was made.

    Args:
        options: of the client. ``base_url`` and ``api_key`` are those of the session, whatever is given.

    Raises:
        RuntimeError: as `current_session`.
    """
    from openai import DefaultHttpxClient, OpenAI

    made_in = current_session()
    return OpenAI(**_options(options, made_in, _Follow(made_in), DefaultHttpxClient))


def get_chat_client_async(**options: Any) -> Any:
    """An ``openai.AsyncOpenAI``, as `get_chat_client`."""
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    made_in = current_session()
    follow = _Follow(made_in)

    async def hook(request: Any) -> None:
        follow(request)

    return AsyncOpenAI(**_options(options, made_in, hook, DefaultAsyncHttpxClient))


def _ask(method: str, url: str, key: str, said: Any = None) -> Any:
    """The JSON that a gateway answers."""
    body = None if said is None else json.dumps(said).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    asked = urllib.request.Request(url, body, headers, method=method)
    # Without the proxies of the environment: the gateway is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(asked, timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise _refusal(url, error) from None
    except ValueError:
        raise ConnectionError(NO_GATEWAY.format(url=url)) from None


def _refusal(url: str, error: urllib.error.HTTPError) -> OSError:
    """The same error with the gateway's reason; another one where no gateway has answered."""
    body = error.read()
    try:
        reason = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return ConnectionError(NO_GATEWAY.format(url=url))
    return urllib.error.HTTPError(url, error.code, reason, error.headers, io.BytesIO(body))


@dataclass(frozen=True)
class _Follow:
    """Sends a request to the session that it is made in."""

    made_in: Session
    """Of the client."""

    def __call__(self, request: Any) -> None:
        now = _CURRENT.get() or self.made_in
        # /s/ID/ROLE/v1/REST
        rest = request.url.raw_path.decode().split("/", 5)[5]
        request.url = type(request.url)(f"{now.openai_url}/{rest}")
        request.headers["host"] = request.url.netloc.decode()
        request.headers["authorization"] = f"Bearer {now.key}"
        if now.metadata:
            request.headers.setdefault(METADATA_HEADER, json.dumps(now.metadata))


def _options(options: dict[str, Any], made_in: Session, hook: Any, make_http: Callable[[], Any]) -> dict[str, Any]:
    http = options.get("http_client") or make_http()
    http.event_hooks = {**http.event_hooks, "request": [*http.event_hooks.get("request", ()), hook]}
    return {**options, "base_url": made_in.openai_url, "api_key": made_in.key, "http_client": http}
