"""The backend `endpoint`: a server has the weights. It receives a conversation's messages, and returns the response.

Workflows use token ids, and the server has the real tokens. So `MessageRenderer` has no tokenizer. Its token ids are
handles of messages and responses. Only their number has a meaning, which the server reports. The text, reasoning and
tool calls are in tables of this process, next to the ids.

`EndpointClient` limits the number of simultaneous requests, and its errors have hints.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import httpx
import numpy as np
from numpy.typing import NDArray

from rllm.builtin.endpoint.settings import EndpointConfig, EndpointSection
from rllm.builtin.tasks.chat_client import ChatClient, ChatError
from rllm_core.contracts.backend import Backend, RunContext, UpdatePlan, UpdateResult
from rllm_core.contracts.engine import Completion, RolloutEngine, SamplingParams
from rllm_core.data.batch import TokenBatch
from rllm_core.data.messages import MalformedToolCall, Message, Response, Tool, ToolCall
from rllm_core.errors import BackendError, ConfigError, RolloutError, UnsupportedSamplingError, did_you_mean
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


class EndpointBackend(Backend):
    """Samples. Everything that trains is refused."""

    def __init__(self) -> None:
        self._client: EndpointClient | None = None

    async def start(self, run: RunContext) -> RolloutEngine:
        """Request the server's list of models, so that a wrong address or key fails here within seconds."""
        settings: EndpointConfig = run.backend_config
        self._client = EndpointClient(settings.endpoint)
        return EndpointEngine(self._client, await self._client.choose_model())

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        _refuse()

    async def sync_weights(self, version: int) -> None:
        _refuse()

    async def save(self, directory: Path) -> None:
        _refuse()

    async def load(self, directory: Path) -> None:
        _refuse()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


def _refuse() -> NoReturn:
    raise ConfigError(
        "backend-cannot-train",
        "The backend 'endpoint' samples from a model and cannot train it.",
        "Train with --backend local.",
    )


ANY_CONTEXT = 2**31 - 1
"""No limit in this process, because the server rejects prompts that are too long."""
LARGEST_SEED = 2**31 - 1
"""Servers keep seeds in 32 or 64 bits."""


class EndpointEngine:
    """Serves many conversations at once."""

    def __init__(self, client: EndpointClient, model: str) -> None:
        self._client = client
        self._settings = client.settings
        self._model = model
        self.renderer = MessageRenderer()

    @property
    def max_context(self) -> int:
        return ANY_CONTEXT

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """Send one request. Log-probs are unknown (NaN). Their number is the server's count of response tokens.

        Raises:
            PromptTooLongError: the server reports that the prompt is too long.
            RolloutError: the sampling parameters have stop strings.
            BackendError: see `EndpointClient.complete`.
        """
        if sampling.stop:
            raise RolloutError(
                "stop-not-supported",
                "The backend 'endpoint' does not support stop strings.",
                "Sample without SamplingParams.stop.",
            )
        if sampling.json_schema is not None or sampling.top_logprobs:
            raise UnsupportedSamplingError(
                "json-schema-not-supported",
                "The backend 'endpoint' has no JSON schemas and no log-probs of other tokens.",
                "Sample without SamplingParams.json_schema and SamplingParams.top_logprobs.",
            )
        prompt = self.renderer.find_prompt(prompt_ids)
        answer = await self._client.complete(self._body(prompt, sampling))
        response, tokens = self._read(answer)
        return Completion(
            token_ids=self.renderer.encode_response(response, tokens),
            logprobs=np.full(tokens, np.nan, np.float32),
            finish_reason="length" if response.finish_reason == "length" else "stop",
            weight_version=0,
        )

    async def end_session(self, session: str) -> None:
        """Do nothing, because servers manage their own caches."""

    def _body(self, prompt: Prompt, sampling: SamplingParams) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": prompt.messages,
            "temperature": sampling.temperature,
            self._settings.max_tokens_field: sampling.max_tokens,
        }
        if sampling.top_p != 1.0:
            body["top_p"] = sampling.top_p
        if sampling.top_k > 0:
            body["top_k"] = sampling.top_k  # beyond OpenAI's API; vLLM and SGLang take it
        if self._settings.send_seed:
            body["seed"] = sampling.seed & LARGEST_SEED
        if prompt.tools:
            body["tools"] = prompt.tools
        return body | self._settings.extra_body

    def _read(self, answer: Mapping[str, Any]) -> tuple[Response, int]:
        try:
            choice = answer["choices"][0]
            message, tokens = choice["message"], int(answer["usage"]["completion_tokens"])
            content = message.get("content") or ""
            reasoning = message.get("reasoning_content") or message.get("reasoning")
            calls = [_call(each) for each in message.get("tool_calls") or ()]
            finish_reason = "length" if choice.get("finish_reason") == "length" else "stop"
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise BackendError(
                "bad-service-answer",
                f"{self._settings.url} answers with no chat completion ({type(error).__name__}: {error}): "
                f"{json.dumps(answer)[:200]}.",
                "It takes `choices` with a message, and `usage.completion_tokens`.",
            ) from error
        return Response(
            text=content,
            content=content,
            reasoning=reasoning,
            tool_calls=tuple(call for call in calls if isinstance(call, ToolCall)),
            malformed_calls=tuple(call for call in calls if isinstance(call, MalformedToolCall)),
            finish_reason=finish_reason,
        ), tokens


def _call(data: Mapping[str, Any]) -> ToolCall | MalformedToolCall:
    function = data["function"]
    text = function.get("arguments") or "{}"
    try:
        arguments = json.loads(text)
    except ValueError as error:
        return MalformedToolCall(text=f"{function['name']}({text})", problem=f"the arguments are no JSON: {error}")
    if not isinstance(arguments, dict):
        return MalformedToolCall(text=f"{function['name']}({text})", problem="the arguments are no JSON object")
    return ToolCall(name=str(function["name"]), arguments=arguments, id=str(data.get("id") or ""))


Ids = NDArray[np.int32]
TokenIds = Sequence[int] | Ids
PROMPT_IDS = 4
"""Ids of a prompt: a digest of 128 bits."""
MAX_ID = 2**31 - 1
MAX_STORED = 1 << 16
"""Maximum number of stored prompts and responses. A prompt is used at once, a response until its conversation ends."""

ThingT = TypeVar("ThingT")


@dataclass(frozen=True)
class Prompt:
    """A request to the server: messages and tools."""

    messages: Sequence[Message]
    tools: Sequence[Tool]


class _Table(Generic[ThingT]):
    """The things that were put in last, by handle."""

    def __init__(self) -> None:
        self._things: OrderedDict[tuple[int, ...], ThingT] = OrderedDict()

    def put(self, handle: tuple[int, ...], thing: ThingT) -> None:
        self._things[handle] = thing
        self._things.move_to_end(handle)
        if len(self._things) > MAX_STORED:
            self._things.popitem(last=False)

    def get(self, handle: tuple[int, ...]) -> ThingT | None:
        return self._things.get(handle)


class MessageRenderer:
    """Prompts and responses by handle. Handles, and the seeds derived from them, depend only on the content."""

    stop_ids: frozenset[int] = frozenset()
    reasoning_ids: tuple[int, int] | None = None

    def __init__(self) -> None:
        self._prompts = _Table[Prompt]()
        self._responses = _Table[Response]()

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Ids:
        """Return the handle of messages and tools, (4,) int32.

        Raises:
            RolloutError: they are not JSON data.
        """
        prompt = Prompt([dict(message) for message in messages], [dict(tool) for tool in tools])
        handle = _handle([prompt.messages, prompt.tools], PROMPT_IDS)
        self._prompts.put(handle, prompt)
        return np.array(handle, np.int32)

    def bridge(
        self, prompt_ids: TokenIds, response_ids: TokenIds, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> None:
        """None: every prompt is a whole conversation, which the server's template renders."""

    def response_ids(self, text: str) -> Ids:
        """Return one id for a text, (1,) int32, because its number of tokens is not known here."""
        return self.encode_response(Response(text=text, content=text), 1)

    def text(self, token_ids: TokenIds) -> str:
        """Return the text of a response."""
        return self._response(token_ids).text

    def token_texts(self, token_ids: TokenIds) -> list[str]:
        """Return empty strings, because a handle is not a token of the model."""
        return [""] * len(token_ids)

    def parse(self, prompt_ids: TokenIds, response_ids: TokenIds, tools: Sequence[Tool] = ()) -> Response:
        """Return the response as the server parsed it."""
        return self._response(response_ids)

    def encode_response(self, response: Response, tokens: int) -> Ids:
        """Return (tokens,) int32 ids for a response. At least one id, even if the server counts no token."""
        (handle,) = _handle([response.message, response.text, response.finish_reason], 1)
        while (other := self._responses.get((handle,))) is not None and other != response:
            handle = (handle + 1) % MAX_ID
        self._responses.put((handle,), response)
        has_content = bool(response.text or response.tool_calls)
        return np.full(max(tokens, int(has_content)), handle, np.int32)

    def find_prompt(self, prompt_ids: TokenIds) -> Prompt:
        """Return the messages for a prompt's ids.

        Raises:
            RolloutError: the ids are unknown, for example ids of a tokenizer.
        """
        prompt = self._prompts.get(tuple(int(each) for each in prompt_ids))
        if prompt is None:
            raise RolloutError(
                "bad-prompt",
                "The backend 'endpoint' was given a prompt that its renderer did not make.",
                "Let the workflow build every prompt with `engine.renderer.prompt(messages)`.",
            )
        return prompt

    def _response(self, response_ids: TokenIds) -> Response:
        found = self._responses.get((int(response_ids[0]),)) if len(response_ids) else None
        return Response(text="", content="") if found is None else found


def _handle(content: Any, numbers: int) -> tuple[int, ...]:
    """Return non-negative int32 numbers that identify JSON data."""
    try:
        text = json.dumps(content, default=_plain)
    except (TypeError, ValueError) as error:
        raise RolloutError(
            "not-json",
            f"A message or tool is not JSON data: {error}.",
            "Messages hold text, numbers, lists and objects.",
        ) from error
    digest = hashlib.blake2b(text.encode(), digest_size=4 * numbers).digest()
    return tuple(int(each) for each in np.frombuffer(digest, "<u4") >> 1)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} {value!r:.40}")
