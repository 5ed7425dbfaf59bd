"""OpenAI's chat-completions API: requests, answers and events.

The Responses API shares its errors and ``tool_choice``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from rllm.rows.messages import read_messages
from rllm.rows.problem import RowError
from rllm.rows.tools import read_tools
from rllm_core.data.messages import Message, Tool
from rllm_gateway.apis import fields
from rllm_gateway.apis.exchange import Choice, FinalText, ModelRequest, PendingResponse, SentText, event
from rllm_gateway.apis.fields import IGNORE, Kind, Outcome, RefusedError, Rules, invalid, reject_unless_ignored
from rllm_gateway.apis.structured import find_required_form, schema_of


@dataclass(frozen=True)
class ToolChoice:
    """A value of ``tool_choice``."""

    none: bool = False
    """True if the model must not call a tool. Its prompt then contains no tools."""
    must_call: bool = False
    tool: str | None = None
    """The only tool that the model may call. None if it may call any tool."""


def read_tool_choice(
    body: Mapping[str, Any], holder: str | None, unsupported: Any, outcomes: dict[str, Outcome]
) -> ToolChoice:
    """Return the choice. A missing choice and an ignored choice leave the model free.

    `holder` is the key of the object with the tool's name; None if the choice has the name itself.

    Raises:
        RefusedError: the value is not supported, or a tool is chosen without a name.
    """
    match body.get("tool_choice"):
        case None:
            return ToolChoice()
        case "auto" | "none" | "required" as choice:
            return ToolChoice(choice == "none", choice == "required")
        case {"type": "function"}:
            choice = fields.mapping(body, "tool_choice")
            named = choice if holder is None else fields.mapping(choice, holder, "tool_choice")
            return ToolChoice(False, True, fields.text(named, "name", "tool_choice"))
        case _:
            reject_unless_ignored("tool_choice", unsupported)
            outcomes["tool_choice"] = "ignored"
            return ToolChoice()


TYPES: dict[Kind, str] = {
    "invalid": "invalid_request_error",
    "authentication": "authentication_error",
    "permission": "permission_error",
    "not_found": "not_found_error",
    "conflict": "conflict_error",
    "too_large": "invalid_request_error",
    "busy": "rate_limit_error",
    "failed": "server_error",
}


def error_object(refused: RefusedError) -> dict[str, Any]:
    return {
        "message": refused.message,
        "type": TYPES[refused.kind],
        "param": refused.param,
        "code": refused.code,
    }


def error_body(refused: RefusedError) -> bytes:
    return orjson.dumps({"error": error_object(refused)})


DONE = b"data: [DONE]\n\n"
RULES = Rules(
    honored=frozenset(
        (
            "messages",
            "max_tokens",
            "max_completion_tokens",
            "stop",
            "n",
            "tools",
            "tool_choice",
            "stream",
            "stream_options",
            "logprobs",
            "top_logprobs",
            "response_format",
            "user",
            "metadata",
        )
    ),
    overruled=frozenset(("model", "temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")),
    ignored=frozenset(
        (
            "verbosity",
            "reasoning_effort",
            "parallel_tool_calls",
            "store",
            "service_tier",
            "prediction",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
        )
    ),
    refused={
        "audio": (),
        "function_call": (),
        "functions": ([],),
        "logit_bias": ({},),
        "modalities": (["text"],),
        "moderation": (),
        "web_search_options": (),
    },
)


def _read(body: dict[str, Any], unsupported: Any) -> ModelRequest:
    """Raises RefusedError."""
    outcomes = RULES.outcomes(body, unsupported)
    chosen = read_tool_choice(body, "function", unsupported, outcomes)
    messages, tools = _read_rows(body, unsupported, outcomes)
    most = [fields.read_integer(body, key, 1, 1 << 31) for key in ("max_tokens", "max_completion_tokens")]
    fields.mapping(body, "stream_options")
    form = fields.mapping(body, "response_format")
    holder = fields.mapping(form, "json_schema", "response_format")
    schema = schema_of(form, holder, "response_format") if form else None
    tools = [] if chosen.none else tools
    return ModelRequest(
        messages=messages,
        tools=tools,
        response_format=find_required_form("response_format", schema, tools, chosen.must_call, chosen.tool),
        n=fields.read_count(body, "n"),
        max_tokens=min((each for each in most if each is not None), default=None),
        stop=fields.stop_texts(body, "stop"),
        stream=fields.truth(body, "stream"),
        logprobs=fields.truth(body, "logprobs"),
        top_logprobs=fields.read_top_logprobs(body, "top_logprobs") if body.get("logprobs") else 0,
        model=fields.optional_text(body, "model"),
        metadata=fields.mapping(body, "metadata"),
        sent={name: value for name, value in body.items() if name != "messages"},
        outcomes=outcomes,
    )


def _read_rows(
    body: Mapping[str, Any], unsupported: Any, outcomes: dict[str, Outcome]
) -> tuple[list[Message], list[Tool]]:
    """Return messages and tools in the normal form of all readers. Calls and their results must have ids.

    Raises:
        RefusedError: a part of them cannot be used.
    """

    def unknown(error: RowError, name: str) -> None:
        if unsupported == "refuse":
            raise invalid(f"{error}. {error.hint} {IGNORE}", error.place, "unsupported_parameter")
        outcomes[f"messages.{name:.64}"] = "ignored"

    try:
        messages = read_messages(body.get("messages"), unknown=unknown).messages
        tools = [*read_tools(body.get("tools"), unknown=unknown)]
    except RowError as error:
        raise invalid(f"{error}. {error.hint}", error.place) from None
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            fields.text(message, "tool_call_id", f"messages[{number}]")
        for at, call in enumerate(message.get("tool_calls", ())):
            fields.text(call, "id", f"messages[{number}].tool_calls[{at}]")
    return messages, tools


class ChatApi:
    """See `Api`."""

    read = staticmethod(_read)
    error = staticmethod(error_body)

    def answer(self, request: ModelRequest, response: PendingResponse) -> bytes:
        choices = [
            {
                "index": index,
                "message": choice.message | {"refusal": None},
                "finish_reason": choice.finish,
                "logprobs": _logprobs(choice) if request.logprobs else None,
            }
            for index, choice in enumerate(response.choices)
        ]
        head = make_head("chatcmpl", "chat.completion", request, response)
        return orjson.dumps(head | {"choices": choices, "usage": usage(response)})

    def stream(self, request: ModelRequest, response: PendingResponse) -> ChatStream:
        return ChatStream(request, response)

    def error_event(self, refused: RefusedError) -> bytes:
        return event({"error": error_object(refused)})


class ChatStream:
    """See `EventStream`."""

    def __init__(self, request: ModelRequest, response: PendingResponse) -> None:
        self._request = request
        self._head = make_head("chatcmpl", "chat.completion.chunk", request, response)
        self._sent_text: defaultdict[int, SentText] = defaultdict(SentText)

    def add(self, index: int, final: FinalText) -> bytes:
        return b"".join(map(self._chunk, self._deltas(index, final)))

    def end(self, response: PendingResponse) -> bytes:
        ends = (map(self._chunk, self._end(*each)) for each in enumerate(response.choices))
        chunks = [chunk for end in ends for chunk in end]
        if (self._request.sent.get("stream_options") or {}).get("include_usage"):
            chunks.append(event(self._head | {"choices": [], "usage": usage(response)}))
        return b"".join(chunks) + DONE

    def _chunk(self, chunk: dict[str, Any]) -> bytes:
        return event(self._head | {"choices": [chunk]})

    def _deltas(self, index: int, final: FinalText | Choice) -> Iterator[dict[str, Any]]:
        """Return the new text of a choice. Its first chunk contains the role."""
        is_first = index not in self._sent_text
        if is_first and not (final.reasoning or final.content or isinstance(final, Choice)):
            return
        more = self._sent_text[index].more(final)
        deltas: list[dict[str, Any]] = [{"role": "assistant"}] if is_first else []
        if more.reasoning:
            deltas.append({"reasoning_content": more.reasoning})
        if more.content:
            deltas.append({"content": more.content})
        for delta in deltas:
            yield {"index": index, "delta": delta, "finish_reason": None, "logprobs": None}

    def _end(self, index: int, choice: Choice) -> Iterator[dict[str, Any]]:
        """Return the rest of the text, the tool calls and the end of the stream."""
        yield from self._deltas(index, choice)
        for at, call in enumerate(choice.tool_calls):
            delta = {"tool_calls": [{"index": at} | call]}
            yield {"index": index, "delta": delta, "finish_reason": None, "logprobs": None}
        logprobs = _logprobs(choice) if self._request.logprobs else None
        yield {"index": index, "delta": {}, "finish_reason": choice.finish, "logprobs": logprobs}


def make_head(prefix: str, kind: str, request: ModelRequest, response: PendingResponse) -> dict[str, Any]:
    """Return the first fields of a body or an event. The id begins with `prefix`."""
    return {"id": f"{prefix}-{response.id}", "object": kind, "created": response.created, "model": request.model}


def _logprobs(choice: Choice) -> dict[str, Any]:
    return {"content": [token.as_json for token in choice.sampled], "refusal": None}


def usage(response: PendingResponse) -> dict[str, Any]:
    """Return the numbers of tokens of a request."""
    return {
        "prompt_tokens": response.prompt_tokens,
        "completion_tokens": response.tokens,
        "total_tokens": response.prompt_tokens + response.tokens,
        "prompt_tokens_details": {"cached_tokens": response.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": sum(each.reasoning_tokens for each in response.choices)},
    }
