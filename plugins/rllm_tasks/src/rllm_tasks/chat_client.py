"""One question to a model behind an API like OpenAI's: tries again where that may help, and keeps the key to itself."""

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

MAY_PASS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses of servers that are busy or broken for now."""
LONGEST_WAIT = 60.0
"""Seconds between two tries, whatever the server asks for."""
MOST_BYTES = 4 * 2**20
"""Of an answer. A reader of more would take a judge's word for how much memory there is."""
SHOWN = 200
"""Characters of an answer that a message shows."""


class ChatError(Exception):
    """There is no answer; the message says why, in one line, without the key."""


class _PassingError(Exception):
    """A failure after which another try may help."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait
        """Seconds that the server asks for."""


@dataclass(frozen=True, kw_only=True)
class ChatClient:
    """Where a model is asked, and how patiently."""

    url: str
    """Without ``/chat/completions``."""
    api_key_env: str | None
    timeout: float
    """Seconds for one try, from connecting to the last byte."""
    retries: int
    backoff: float
    """Seconds before the second try; doubled for each further one."""

    async def ask(self, model: str, messages: Sequence[Message], body: Mapping[str, Any]) -> str:
        """What the model answers.

        Raises:
            ChatError: no answer came, or one without text.
        """
        request = {**body, "model": model, "messages": list(messages)}
        key = os.environ.get(self.api_key_env, "").strip() if self.api_key_env else ""
        # A client for each question: rewards serve several event loops, and nothing tells them when one ends.
        async with httpx.AsyncClient(timeout=self.timeout, verify=_tls()) as client:
            for number in range(self.retries + 1):
                try:
                    return _text(await self._answer(client, request, key))
                except _PassingError as error:
                    if number == self.retries:
                        tries = "one try" if number == 0 else f"{number + 1} tries"
                        raise ChatError(_without(key, f"{error} (after {tries})")) from None
                    await asyncio.sleep(min(LONGEST_WAIT, max(error.wait, self.backoff * 2**number)))
                except ChatError as error:
                    raise ChatError(_without(key, str(error))) from None
        raise AssertionError("the last try returns or raises")

    async def _answer(self, client: httpx.AsyncClient, request: Mapping[str, Any], key: str) -> bytes:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            async with (
                asyncio.timeout(self.timeout),
                client.stream("POST", f"{self.url}/chat/completions", json=request, headers=headers) as response,
            ):
                answer = await _bounded(response)
        except (TimeoutError, httpx.TimeoutException):
            raise _PassingError(f"no answer within {self.timeout:g} s") from None
        except httpx.TransportError as error:
            raise _PassingError(f"{type(error).__name__}: {error}") from None
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise ChatError(f"{type(error).__name__}: {error}") from None
        if response.status_code == httpx.codes.OK:
            return answer
        said = f"HTTP {response.status_code}: {_shown(answer)}"
        if response.status_code in MAY_PASS:
            raise _PassingError(said, _asked_wait(response))
        raise ChatError(said)


@cache
def _tls() -> ssl.SSLContext:
    """Made once: it reads all certificates."""
    return httpx.create_ssl_context()


async def _bounded(response: httpx.Response) -> bytes:
    answer = bytearray()
    async for part in response.aiter_bytes():
        answer += part
        if len(answer) > MOST_BYTES:
            raise ChatError(f"the answer is longer than {MOST_BYTES} bytes")
    return bytes(answer)


def _text(answer: bytes) -> str:
    try:
        text = json.loads(answer)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ChatError(f"the answer has no choices[0].message.content: {_shown(answer)}") from None
    if not isinstance(text, str):
        raise ChatError(f"the answer has no text: {_shown(answer)}")
    return text


def _asked_wait(response: httpx.Response) -> float:
    """Of ``Retry-After`` in seconds; a date is not read."""
    said = response.headers.get("retry-after", "")
    return float(said) if said.isascii() and said.isdigit() else 0.0


def _shown(answer: bytes) -> str:
    return " ".join(answer[: 4 * SHOWN].decode("utf-8", "replace").split())[:SHOWN]


def _without(key: str, text: str) -> str:
    """Servers quote what they were sent."""
    return text.replace(key, "***") if key else text
