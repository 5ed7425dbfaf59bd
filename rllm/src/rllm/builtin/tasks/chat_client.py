"""Client for an OpenAI-compatible API: it retries temporary failures, limits response sizes and hides the key.

Used by judges and by `rllm.builtin.endpoint`.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx

from rllm_core.data.messages import Message

MAY_PASS = frozenset({408, 409, 425, 429})
"""Status codes of servers that are busy for now. Codes from 500 on come from servers that are broken for now."""
LONGEST_WAIT = 60.0
"""Maximum number of seconds between two tries, even if the server requests more."""
MOST_BYTES = 4 * 2**20
"""Maximum size of a response in bytes. Without a limit, a server could use up the memory."""
SHOWN = 200
"""Number of characters of a response that an error message shows."""


class ChatError(Exception):
    """A request failed. The message gives the reason in one line, without the key."""

    def __init__(self, message: str, status: int | None = None, said: str = "") -> None:
        super().__init__(message)
        self.status = status
        """Status of the HTTP response. None: no response came, or it had no error and was not a chat completion."""
        self.said = said
        """The whole body of the server's response."""


class _PassingError(ChatError):
    """A temporary failure, after which a retry may succeed."""

    wait = 0.0
    """Seconds that the server wants the client to wait."""


@dataclass(frozen=True, kw_only=True)
class ChatClient:
    """Client for a chat model's API, with its limits on time and retries."""

    url: str
    """Without ``/chat/completions``."""
    api_key_env: str | None
    timeout: float
    """Seconds for one try, from connecting to the last byte."""
    retries: int
    backoff: float
    """Seconds before the second try; doubled for each further one."""

    async def ask(self, model: str, messages: Sequence[Message], body: Mapping[str, Any]) -> str:
        """Return the model's answer.

        Raises:
            ChatError: no answer came, or the answer has no text.
        """
        # Use a new client for each request: rewards serve several event loops, and cannot see when one is closed.
        async with httpx.AsyncClient(timeout=self.timeout, verify=_tls()) as http:
            answer = await self.complete(http, {**body, "model": model, "messages": list(messages)})
        try:
            text = answer["choices"][0]["message"]["content"]
        except (LookupError, TypeError):
            raise self._error(f"the answer has no choices[0].message.content: {_shown(json.dumps(answer))}") from None
        if not isinstance(text, str):
            raise self._error(f"the answer has no text: {_shown(json.dumps(answer))}")
        return text

    async def complete(
        self, http: httpx.AsyncClient, request: Mapping[str, Any], path: str = "/chat/completions"
    ) -> dict[str, Any]:
        """Return the JSON object that answers a request for a completion.

        Raises:
            ChatError: no answer came, or it is not a JSON object.
        """
        for number in range(self.retries + 1):
            try:
                answer = await self._send(http, "POST", path, request)
            except _PassingError as error:
                if number == self.retries:
                    tries = "one try" if number == 0 else f"{number + 1} tries"
                    raise ChatError(f"{error} (after {tries})", error.status, error.said) from None
                await asyncio.sleep(min(LONGEST_WAIT, max(error.wait, self.backoff * 2**number)))
            else:
                return self._object(answer)
        raise AssertionError("the last try returns or raises")

    async def models(self, http: httpx.AsyncClient) -> dict[str, Any]:
        """Return the JSON object that lists models. This request is not retried.

        Raises:
            ChatError: no answer came, or it is not a JSON object.
        """
        return self._object(await self._send(http, "GET", "/models", None))

    async def _send(self, http: httpx.AsyncClient, method: str, path: str, request: Mapping[str, Any] | None) -> bytes:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        try:
            async with (
                asyncio.timeout(self.timeout),
                http.stream(method, self.url + path, json=request, headers=headers) as response,
            ):
                answer = await self._bounded(response)
        except (TimeoutError, httpx.TimeoutException):
            raise _PassingError(f"no answer within {self.timeout:g} s") from None
        except httpx.TransportError as error:
            raise _PassingError(self._without_key(f"{type(error).__name__}: {error}".rstrip(" :."))) from None
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise self._error(f"{type(error).__name__}: {error}") from None
        if response.status_code == httpx.codes.OK:
            return answer
        said = self._without_key(answer.decode("utf-8", "replace"))
        message = f"HTTP {response.status_code}: {_shown(said)}"
        if response.status_code < 500 and response.status_code not in MAY_PASS:
            raise ChatError(message, response.status_code, said)
        passing = _PassingError(message, response.status_code, said)
        passing.wait = _asked_wait(response)
        raise passing

    async def _bounded(self, response: httpx.Response) -> bytes:
        answer = bytearray()
        async for part in response.aiter_bytes():
            answer += part
            if len(answer) > MOST_BYTES:
                raise self._error(f"the answer is longer than {MOST_BYTES} bytes")
        return bytes(answer)

    def _object(self, answer: bytes) -> dict[str, Any]:
        try:
            data = json.loads(answer)
        except (ValueError, RecursionError):
            data = None
        if isinstance(data, dict):
            return data
        raise self._error(f"the answer is no JSON object: {_shown(answer.decode('utf-8', 'replace'))}")

    @property
    def _key(self) -> str:
        return os.environ.get(self.api_key_env, "").strip() if self.api_key_env else ""

    def _error(self, message: str) -> ChatError:
        return ChatError(self._without_key(message))

    def _without_key(self, text: str) -> str:
        """Hide the key in a message, because servers may quote the request."""
        return text.replace(self._key, "***") if self._key else text


@cache
def _tls() -> ssl.SSLContext:
    """Return the TLS context. It is created once, because creating it reads all certificates."""
    return httpx.create_ssl_context()


def _asked_wait(response: httpx.Response) -> float:
    """Return the seconds in ``Retry-After``. A date in this header is ignored."""
    said = response.headers.get("retry-after", "")
    return float(said) if said.isascii() and said.isdigit() else 0.0


def _shown(answer: str) -> str:
    return " ".join(answer[: 4 * SHOWN].split())[:SHOWN]
