"""Client library for agents: set roles and rewards.

Simple agents do not need it, because they can use environment variables.
"""

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
from dataclasses import dataclass, field, replace
from typing import Any

DEFAULT_ROLE = "agent"
METADATA_HEADER = "X-Rllm-Metadata"
REWARD_KEY_HEADER = "X-Rllm-Reward-Key"
REWARD_KEY = "RLLM_REWARD_KEY"
"""Environment variable with the reward key, if ``rllm.workflow.workflow_args.reports_reward`` is true."""
NO_GATEWAY = "no gateway answers at {url}; has the run ended?"
ROLE = re.compile(r"(?!(?:\.{1,2}|v1)$)[A-Za-z0-9._~-]{1,64}")
"""Clients remove '.' and '..' from a path. Anthropic's clients add 'v1' to the URL of a session without a role."""
_reward_key = ""
"""Reward key of an agent's function. It is no environment variable, because commands of the model would inherit it."""
_CURRENT: ContextVar[Session | None] = ContextVar("rllm_session", default=None)


@dataclass(frozen=True)
class Session:
    """The session of one rollout, as its agent uses it."""

    url: str
    """URL of the session, without a role."""
    key: str
    role: str = DEFAULT_ROLE
    metadata: Mapping[str, Any] | None = None
    """Metadata that clients from `get_chat_client` add to every call. ``rllm.sdk.processing`` selects its keys."""
    reward_key: str = field(default="", repr=False)
    """Key that `reward` needs. Do not give it to commands that the model writes. Empty if this process has none."""

    @property
    def openai_url(self) -> str:
        """The ``base_url`` for OpenAI's client."""
        return f"{self.url}/{self.role}/v1"

    @property
    def anthropic_url(self) -> str:
        """The ``base_url`` for Anthropic's client."""
        return f"{self.url}/{self.role}"

    @property
    def google_url(self) -> str:
        """The ``base_url`` of the HTTP options for Google's client."""
        return f"{self.url}/{self.role}"

    def with_role(self, role: str) -> Session:
        """Return the same session with a different role. The calls of each role form a separate trajectory."""
        return replace(self, role=role)

    def reward(self, value: float) -> None:
        """Set the reward of this role. If you call it several times, the last value applies.

        Raises:
            urllib.error.HTTPError: the gateway rejects the reward, for example because the run has a reward function.
                The body contains its reason.
        """
        _ask(f"{self.url}/{self.role}/v1/reward", self, {"reward": value})


def set_reward_key(key: str) -> None:
    """Set the reward key of this process. rllm calls it before it calls an agent's function."""
    global _reward_key
    _reward_key = key


def current_session() -> Session:
    """Return the session of the enclosing `session`, or else of this process.

    Raises:
        RuntimeError: there is no session, because ``rllm`` did not start the agent.
    """
    if (opened := _CURRENT.get()) is not None:
        return opened
    try:
        reward_key = _reward_key or os.environ.get(REWARD_KEY, "")
        return Session(os.environ["RLLM_SESSION_URL"], os.environ["OPENAI_API_KEY"], reward_key=reward_key)
    except KeyError as error:
        raise RuntimeError(f"{error.args[0]} is not set: run the agent by `rllm train --agent`") from error


@contextmanager
def session(role: str | None = None, **metadata: Any) -> Iterator[Session]:
    """Set the role and metadata of calls inside the context. Nested contexts add to the metadata.

    This works for clients from `get_chat_client`.

    To give the role to a different client, create it with a URL of the yielded session, for example
    ``Anthropic(base_url=made.anthropic_url)``.

    Raises:
        RuntimeError: there is no session. See `current_session`.
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
    """Set the reward of a role. See `Session.reward`. The gateway rejects a role without calls."""
    current_session().with_role(role).reward(value)


def get_chat_client(**options: Any) -> Any:
    """Return an ``openai.OpenAI`` whose calls use the current session at the time of the call.

    If there is no current `session`, for example in a thread, a call uses the session in which the client was created.

    Args:
        options: options of the client. ``base_url`` and ``api_key`` are ignored, because the session sets them.

    Raises:
        RuntimeError: there is no session. See `current_session`.
    """
    from openai import DefaultHttpxClient, OpenAI

    made_in = current_session()
    return OpenAI(**_options(options, made_in, _Follow(made_in), DefaultHttpxClient))


def get_chat_client_async(**options: Any) -> Any:
    """Return an ``openai.AsyncOpenAI``. See `get_chat_client`."""
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    made_in = current_session()
    follow = _Follow(made_in)

    async def hook(request: Any) -> None:
        follow(request)

    return AsyncOpenAI(**_options(options, made_in, hook, DefaultAsyncHttpxClient))


def _ask(url: str, session: Session, body: Any) -> None:
    """Send JSON data to a gateway."""
    keys = {"Authorization": f"Bearer {session.key}", REWARD_KEY_HEADER: session.reward_key}
    headers = {**keys, "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    # Do not use the proxies of the environment, because the gateway is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as answer:
            json.load(answer)
    except urllib.error.HTTPError as error:
        raise _refusal(url, error) from None
    except ValueError:
        raise ConnectionError(NO_GATEWAY.format(url=url)) from None


def _refusal(url: str, error: urllib.error.HTTPError) -> OSError:
    """Return the error with the gateway's reason, or a `ConnectionError` if no gateway has answered."""
    body = error.read()
    try:
        reason = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return ConnectionError(NO_GATEWAY.format(url=url))
    return urllib.error.HTTPError(url, error.code, reason, error.headers, io.BytesIO(body))


@dataclass(frozen=True)
class _Follow:
    """Request hook that sends a request to the current session."""

    made_in: Session
    """Session in which the client was created."""

    def __call__(self, request: Any) -> None:
        now = _CURRENT.get() or self.made_in
        # /s/ID/ROLE/REST
        rest = request.url.raw_path.decode().split("/", 4)[4]
        request.url = type(request.url)(f"{now.url}/{now.role}/{rest}")
        request.headers["host"] = request.url.netloc.decode()
        request.headers["authorization"] = f"Bearer {now.key}"
        if now.metadata:
            request.headers.setdefault(METADATA_HEADER, json.dumps(now.metadata))


def _options(options: dict[str, Any], made_in: Session, hook: Any, make_http: Callable[[], Any]) -> dict[str, Any]:
    http = options.get("http_client") or make_http()
    http.event_hooks = {**http.event_hooks, "request": [*http.event_hooks.get("request", ()), hook]}
    return {**options, "base_url": made_in.openai_url, "api_key": made_in.key, "http_client": http}
