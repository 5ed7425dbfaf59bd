"""ChatClient: requests to one server, bounded, retried, and with errors that say what the server said."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import httpx

from rllm_core.errors import BackendError, did_you_mean
from rllm_core.notices import one_line
from rllm_endpoint.settings import EndpointSection

SECONDS_TO_CONNECT = 5.0
SECONDS_TO_ANSWER = 8.0
"""For the first, small request: a wrong address is found out within ten seconds."""
LONGEST_WAIT = 60.0
"""Seconds before a retry, whatever the server asks for."""
WORTH_A_RETRY = frozenset({408, 409, 425, 429})
OVERLONG = ("context_length_exceeded", "context length", "maximum context", "too many tokens", "prompt is too long")
"""What servers say of a prompt that does not fit."""
NO_LIST = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED})
"""Servers without a list of models."""


class PromptRefusedError(Exception):
    """The server says that the prompt does not fit into the model's context."""


class ChatClient:
    """Speaks with the server of a run."""

    def __init__(self, settings: EndpointSection) -> None:
        self.settings = settings
        self._slots = asyncio.Semaphore(settings.max_concurrency)
        key = os.environ.get(settings.api_key_env)
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(settings.timeout, connect=SECONDS_TO_CONNECT, pool=None),
            limits=httpx.Limits(max_connections=settings.max_concurrency),
        )

    async def choose_model(self) -> str:
        """The model to ask for: the one of the settings, or the only one that the server lists.

        Raises:
            BackendError: the server cannot be reached, refuses the key, or does not have the model.
        """
        url, wanted = f"{self.settings.url}/models", self.settings.model
        try:
            async with asyncio.timeout(SECONDS_TO_ANSWER):
                response = await self._http.get(url)
        except (httpx.HTTPError, TimeoutError) as error:
            raise BackendError(f"{url} cannot be reached: {_reason(error)}.", "Is the server running there?") from error
        if response.status_code in NO_LIST:
            if wanted is None:
                raise BackendError(_said(url, response), "Name the model with --model-name; addresses end with /v1.")
            return wanted
        if response.is_error:
            raise BackendError(_said(url, response), self._remedy(response))
        names = _names(url, response)
        if wanted is None and len(names) == 1:
            return names[0]
        if wanted is None or (names and wanted not in names):
            asked = "" if wanted is None else f", and not {wanted!r}"
            closest = "" if wanted is None else did_you_mean(wanted, names)
            raise BackendError(
                f"{self.settings.url} has the models {', '.join(names) or 'none'}{asked}.",
                f"{closest} Name one with --model-name NAME.".lstrip(),
            )
        return wanted

    async def complete(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The server's answer to a chat-completions request.

        Raises:
            PromptRefusedError: the prompt does not fit.
            BackendError: the server refuses the request, or does not answer after all retries.
        """
        url = f"{self.settings.url}/chat/completions"
        problem = ""
        async with self._slots:
            for retry in range(self.settings.retries + 1):
                wait = min(self.settings.backoff * 2**retry, LONGEST_WAIT)
                try:
                    response = await self._http.post(url, json=dict(body))
                except httpx.HTTPError as error:
                    problem = f"{url} does not answer: {_reason(error)}"
                else:
                    if response.is_success:
                        return _json(url, response)
                    _refuse_overlong(response)
                    problem = _said(url, response).rstrip(".")
                    if response.status_code < 500 and response.status_code not in WORTH_A_RETRY:
                        raise BackendError(f"{problem}.", self._remedy(response))
                    wait = _asked_wait(response, wait)
                if retry < self.settings.retries:
                    await asyncio.sleep(wait)
        raise BackendError(
            f"{problem}; it was asked {self.settings.retries + 1} times.",
            "Look at the server, or set endpoint.retries, endpoint.timeout or endpoint.max_concurrency.",
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    def _remedy(self, response: httpx.Response) -> str:
        if response.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return f"Put the API key into {self.settings.api_key_env}, or name its variable: endpoint.api_key_env=NAME."
        if response.status_code == HTTPStatus.NOT_FOUND:
            return "Look at the address, which ends with /v1 on most servers, and at --model-name."
        return "The server says what it does not take; endpoint.extra_body and sampling.val change the request."


def _names(url: str, response: httpx.Response) -> list[str]:
    models = _json(url, response).get("data")
    return [str(each.get("id")) for each in models if isinstance(each, dict)] if isinstance(models, list) else []


def _json(url: str, response: httpx.Response) -> Mapping[str, Any]:
    try:
        data = response.json()
    except ValueError:
        data = None
    if isinstance(data, dict):
        return data
    raise BackendError(
        f"{url} answers with something that is no JSON object: {_first_line(response)}.",
        "Is it a server of OpenAI's chat API? Addresses end with /v1 on most.",
    )


def _refuse_overlong(response: httpx.Response) -> None:
    text = response.text.lower()
    if response.status_code in (400, 413, 422) and any(words in text for words in OVERLONG):
        raise PromptRefusedError


def _asked_wait(response: httpx.Response, otherwise: float) -> float:
    """What the server asks for, in seconds; dates are not read."""
    asked = response.headers.get("retry-after", "")
    return min(max(float(asked), 0.0), LONGEST_WAIT) if asked.isdecimal() else otherwise


def _said(url: str, response: httpx.Response) -> str:
    return f"{url} answers {response.status_code}: {_first_line(response)}."


def _first_line(response: httpx.Response) -> str:
    lines = [line.strip() for line in response.text.splitlines() if line.strip()]
    return one_line(lines[0], 200).rstrip(".") if lines else "nothing"


def _reason(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {error}").rstrip(" :.")
