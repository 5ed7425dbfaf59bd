"""The backend `endpoint`: a server has the weights. It receives a conversation's messages, and returns the response.

Workflows use token ids, and the server has the real tokens. So `MessageRenderer` has no tokenizer. Its token ids are
handles of messages and responses, and only their number matters, which the server reports. The text, reasoning and tool
calls are in tables of this process, next to the ids.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from rllm.builtin.endpoint.client import EndpointClient
from rllm.builtin.endpoint.settings import EndpointConfig
from rllm_core.contracts.backend import Backend, RunContext, UpdatePlan, UpdateResult
from rllm_core.contracts.engine import Completion, RolloutEngine, SamplingParams
from rllm_core.data.batch import TokenBatch
from rllm_core.data.messages import MalformedToolCall, Message, Response, Tool, ToolCall
from rllm_core.errors import BackendError, ConfigError, RolloutError, UnsupportedSamplingError


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
