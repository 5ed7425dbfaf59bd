"""EndpointClient: requests to the server of a run, so many at a time, and errors that say what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import httpx

from rllm.builtin.endpoint.settings import EndpointSection
from rllm.builtin.tasks.chat_client import ChatClient, ChatError
from rllm_core.errors import BackendError, did_you_mean
from rllm_core.rollout.conversation import PromptTooLongError

SECONDS_TO_CONNECT = 5.0
SECONDS_TO_ANSWER = 8.0
"""For the first, small request: a wrong address is found out within ten seconds."""
OVERLONG = ("context_length_exceeded", "context length", "maximum context", "too many tokens", "prompt is too long")
"""Text in servers' errors if a prompt is too long."""
NO_LIST = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED})
"""Servers without a list of models."""


class EndpointClient:
    """Speaks with the server of a run."""

    def __init__(self, settings: EndpointSection) -> None:
        self.settings = settings
        self._slots = asyncio.Semaphore(settings.max_concurrency)
        self._chat = ChatClient(
            url=settings.url,
            api_key_env=settings.api_key_env,
            timeout=settings.timeout,
            retries=settings.retries,
            backoff=settings.backoff,
        )
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(settings.timeout, connect=SECONDS_TO_CONNECT, pool=None),
            limits=httpx.Limits(max_connections=settings.max_concurrency),
        )

    async def choose_model(self) -> str:
        """Return the model for requests: the configured model, or the only model of the server.

        Raises:
            BackendError: the server cannot be reached, rejects the key, or does not have the model.
        """
        url, model = f"{self.settings.url}/models", self.settings.model
        try:
            listed = await replace(self._chat, timeout=SECONDS_TO_ANSWER).models(self._http)
        except ChatError as error:
            if error.status in NO_LIST and model is not None:
                return model
            raise BackendError("service-failed", f"{url}: {error}.", self._remedy_of_list(error)) from error
        models = listed.get("data")
        names = [str(each.get("id")) for each in models if isinstance(each, dict)] if isinstance(models, list) else []
        if model is None and len(names) == 1:
            return names[0]
        if model is None or (names and model not in names):
            asked = "" if model is None else f", and not {model!r}"
            closest = "" if model is None else did_you_mean(model, names)
            raise BackendError(
                "model-not-found",
                f"{self.settings.url} has the models {', '.join(names) or 'none'}{asked}.",
                f"{closest} Name one with --model-name NAME.".lstrip(),
            )
        return model

    async def complete(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the server's response to a chat-completions request.

        Raises:
            PromptTooLongError: the prompt does not fit.
            BackendError: the server rejects the request, or does not respond after all retries.
        """
        async with self._slots:
            try:
                return await self._chat.complete(self._http, body)
            except ChatError as error:
                if error.status in (400, 413, 422) and any(words in error.said.lower() for words in OVERLONG):
                    raise PromptTooLongError from error
                raise BackendError(
                    "service-failed", f"{self.settings.url}/chat/completions: {error}.", self._remedy(error)
                ) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    def _remedy_of_list(self, error: ChatError) -> str:
        if error.status is None:
            return "Is a server of OpenAI's chat API running there? Addresses end with /v1 on most."
        if error.status in NO_LIST:
            return "Name the model with --model-name; addresses end with /v1."
        return self._remedy(error)

    def _remedy(self, error: ChatError) -> str:
        if error.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return f"Put the API key into {self.settings.api_key_env}, or name its variable: endpoint.api_key_env=NAME."
        if error.status == HTTPStatus.NOT_FOUND:
            return "Look at the address, which ends with /v1 on most servers, and at --model-name."
        if error.status is None or error.status >= 500 or error.status == HTTPStatus.TOO_MANY_REQUESTS:
            return "Look at the server, or set endpoint.retries, endpoint.timeout or endpoint.max_concurrency."
        return "The server says what it does not take; endpoint.extra_body and sampling.val change the request."
