"""EndpointEngine: a conversation's messages go to the server, its response comes back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm.builtin.endpoint.carried import CarriedMessages, Prompt
from rllm.builtin.endpoint.client import EndpointClient
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.data.messages import MalformedToolCall, Response, ToolCall
from rllm_core.errors import BackendError, RolloutError, UnsupportedSamplingError

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
        self.renderer = CarriedMessages()

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
        asked = self.renderer.find_prompt(prompt_ids)
        answer = await self._client.complete(self._body(asked, sampling))
        response, tokens = self._read(answer)
        return Completion(
            token_ids=self.renderer.carry(response, tokens),
            logprobs=np.full(tokens, np.nan, np.float32),
            finish_reason="length" if response.finish_reason == "length" else "stop",
            weight_version=0,
        )

    async def end_session(self, session: str) -> None:
        """Do nothing, because servers manage their own caches."""

    def _body(self, asked: Prompt, sampling: SamplingParams) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": asked.messages,
            "temperature": sampling.temperature,
            self._settings.max_tokens_field: sampling.max_tokens,
        }
        if sampling.top_p != 1.0:
            body["top_p"] = sampling.top_p
        if sampling.top_k > 0:
            body["top_k"] = sampling.top_k  # beyond OpenAI's API; vLLM and SGLang take it
        if self._settings.send_seed:
            body["seed"] = sampling.seed & LARGEST_SEED
        if asked.tools:
            body["tools"] = asked.tools
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
