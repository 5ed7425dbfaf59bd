"""Anthropic's Messages API: requests, answers and events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import orjson

from rllm_gateway.apis import fields
from rllm_gateway.apis.exchange import Choice, FinalText, ModelRequest, PendingResponse, SentText, event
from rllm_gateway.apis.fields import Kind, MessageParts, RefusedError, Rules, invalid, reject_unless_ignored
from rllm_gateway.apis.structured import find_required_form, schema_of

RULES = Rules(
    honored=frozenset(("messages", "system", "max_tokens", "stop_sequences", "stream", "tools", "metadata")),
    overruled=frozenset(("model", "temperature", "top_p", "top_k")),
    ignored=frozenset(
        (
            "cache_control",
            "diagnostics",
            "inference_geo",
            "service_tier",
            "speed",
            "thinking",
            "user_profile_id",
            "workspace_id",
        )
    ),
    refused={
        "container": (),
        "context_management": ({"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},),
        "output_config": ({},),
        "tool_choice": (),
    },
)
FORMS = ("tool_choice", "output_config", "output_format")
"""Parameters for the form of a response. Clients of the beta API, such as LiteLLM, send ``output_format``."""
CHOICES = ("auto", "none", "any", "tool")


def read(body: dict[str, Any], unsupported: Any) -> ModelRequest:
    """Raises RefusedError."""
    _check_thread(body)
    choice = fields.mapping(body, "tool_choice")
    kind = choice.get("type")
    config = fields.mapping(body, "output_config")
    old_form = fields.mapping(body, "output_format")
    plain = {name: value for name, value in body.items() if name not in FORMS}
    outcomes = RULES.outcomes(plain, unsupported)
    if kind is not None:
        if kind not in CHOICES:
            reject_unless_ignored("tool_choice", unsupported)
        outcomes["tool_choice"] = "honored" if kind in CHOICES else "ignored"
    form_name = "output_config.format" if "format" in config or not old_form else "output_format"
    form = fields.mapping(config, "format", "output_config") or old_form
    schema = schema_of(form, form, form_name) if form else None
    if old_form:
        outcomes["output_format"] = "ignored" if schema is None else "honored"
    if config:
        has_form = schema is not None and form_name == "output_config.format"
        outcomes["output_config"] = "honored" if has_form else "ignored"
    reader = _Messages(unsupported, outcomes)
    messages = list(reader.system(body))
    tools = [_tool(tool, f"tools[{at}]") for at, tool in enumerate(fields.objects(body, "tools"))]
    tools = [] if kind == "none" else tools
    turns = fields.objects(body, "messages")
    for at, turn in enumerate(turns):
        messages += reader.messages(turn, f"messages[{at}]")
    if not turns:
        raise invalid("messages is empty; send at least one.", "messages")
    return ModelRequest(
        messages=messages,
        tools=tools,
        response_format=find_required_form(
            form_name,
            schema,
            tools,
            kind in ("any", "tool"),
            fields.text(choice, "name", "tool_choice") if kind == "tool" else None,
        ),
        max_tokens=fields.read_integer(body, "max_tokens", 1, 1 << 31),
        stop=fields.stop_texts(body, "stop_sequences"),
        stream=fields.truth(body, "stream"),
        model=fields.optional_text(body, "model"),
        metadata=fields.mapping(body, "metadata"),
        sent={name: value for name, value in body.items() if name != "messages"},
        outcomes=outcomes,
    )


def _check_thread(body: Mapping[str, Any]) -> None:
    """Reject conversations that are stored on the server, in every session.

    If the gateway ignored ``thread``, earlier messages would be lost. Clients react to the code of this error: they
    send the whole conversation instead.
    """
    if "thread" in body:
        raise invalid(
            "thread is not supported; send the whole conversation each time.", "thread", "thread_unsupported_request"
        )


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise invalid(f"{where}.type is {tool['type']!r:.80}; this model has no tools of the server.", f"{where}.type")
    function: dict[str, Any] = {"name": fields.text(tool, "name", where)}
    if description := fields.optional_text(tool, "description", where):
        function["description"] = description
    return {"type": "function", "function": function | {"parameters": fields.mapping(tool, "input_schema", where)}}


class _Messages(MessageParts):
    """Reads turns. A turn in Anthropic's API may become several messages, because each tool result is a message."""

    parameter = "messages"
    text_keys: ClassVar = {"text": "text"}

    def system(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        if text := self.read(body.get("system"), "system"):
            yield {"role": "system", "content": text}

    def messages(self, turn: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
        role = fields.text(turn, "role", where)
        if role not in ("user", "assistant", "system"):
            raise invalid(f"{where}.role is none of user, assistant and system.", f"{where}.role")
        if role == "assistant":
            yield self._assistant(turn, where)
        elif isinstance(turn.get("content"), str):
            yield {"role": role, "content": turn["content"]}
        else:
            yield from self._convert_turn(role, turn, where)

    def _convert_turn(self, role: str, turn: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
        others = list[dict[str, Any]]()
        for at, block in enumerate(fields.objects(turn, "content", where)):
            block_path = f"{where}.content[{at}]"
            if block.get("type") == "tool_result":
                result = self.read(block.get("content"), f"{block_path}.content")
                yield {"role": "tool", "tool_call_id": fields.text(block, "tool_use_id", block_path), "content": result}
            else:
                others.append(block)
        if others or not turn.get("content"):
            yield {"role": role, "content": self.read(others, f"{where}.content")}

    def _assistant(self, turn: Mapping[str, Any], where: str) -> dict[str, Any]:
        content = turn.get("content")
        if isinstance(content, str):
            return {"role": "assistant", "content": content}
        blocks = fields.objects(turn, "content", where)
        calls = [_call(block, f"{where}.content") for block in blocks if block.get("type") == "tool_use"]
        reasoning = [block for block in blocks if block.get("type") == "thinking"]
        rest = [b for b in blocks if b.get("type") not in ("tool_use", "thinking", "redacted_thinking")]
        message: dict[str, Any] = {"role": "assistant", "content": self.read(rest, f"{where}.content")}
        if reasoning:
            reasoning_parts = [fields.text(block, "thinking", f"{where}.content") for block in reasoning]
            message["reasoning_content"] = "".join(reasoning_parts)
        return message | ({"tool_calls": calls} if calls else {})


def _call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    arguments = orjson.dumps(fields.mapping(block, "input", where)).decode()
    return {
        "id": fields.text(block, "id", where),
        "type": "function",
        "function": {"name": fields.text(block, "name", where), "arguments": arguments},
    }


ERRORS: dict[Kind, str] = {
    "invalid": "invalid_request_error",
    "authentication": "authentication_error",
    "permission": "permission_error",
    "not_found": "not_found_error",
    "conflict": "invalid_request_error",
    "too_large": "request_too_large",
    "busy": "rate_limit_error",
    "failed": "api_error",
}

SIGNATURE = "rllm"
"""Signature of reasoning blocks. Clients send it back, and the gateway does not read it."""


class MessagesApi:
    """See `Api`."""

    read = staticmethod(read)

    def answer(self, request: ModelRequest, response: PendingResponse) -> bytes:
        choice = response.choices[0]
        stop_fields = {"stop_reason": _stop_reason(choice), "stop_sequence": choice.stop}
        head = _head(request, response) | stop_fields
        return orjson.dumps(head | {"content": _blocks(choice), "usage": _usage(response, response.tokens)})

    def stream(self, request: ModelRequest, response: PendingResponse) -> MessagesStream:
        return MessagesStream(request, response)

    @staticmethod
    def error(refused: RefusedError) -> bytes:
        return orjson.dumps(_error(refused))

    def error_event(self, refused: RefusedError) -> bytes:
        return event(_error(refused), "error")


def _error(refused: RefusedError) -> dict[str, Any]:
    error: dict[str, Any] = {"type": ERRORS[refused.kind], "message": refused.message}
    if refused.code is not None:
        # Clients read the reason for an error from this field.
        error["details"] = {"error_code": refused.code}
    return {"type": "error", "error": error}


def _head(request: ModelRequest, response: PendingResponse) -> dict[str, Any]:
    return {"id": f"msg_{response.id}", "type": "message", "role": "assistant", "model": request.model}


def _blocks(choice: Choice) -> list[dict[str, Any]]:
    blocks = list[dict[str, Any]]()
    if choice.reasoning:
        blocks.append({"type": "thinking", "thinking": choice.reasoning, "signature": SIGNATURE})
    if choice.content or not choice.tool_calls:
        blocks.append({"type": "text", "text": choice.content})
    for call in choice.tool_calls:
        function = call["function"]
        arguments = orjson.loads(function["arguments"])
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
    return blocks


class MessagesStream:
    """See `EventStream`. Text that is sent early is in the first block, which contains reasoning, or else text."""

    def __init__(self, request: ModelRequest, response: PendingResponse) -> None:
        self._request = request
        self._response = response
        self._sent_text = SentText()
        self._has_started = self._has_block = False

    def add(self, index: int, final: FinalText) -> bytes:
        more = self._sent_text.more(final)
        if more.reasoning:
            return _encode_events(
                self._add_delta({"type": "thinking", "thinking": more.reasoning, "signature": SIGNATURE})
            )
        return _encode_events(self._add_delta({"type": "text", "text": more.content})) if more.content else b""

    def end(self, response: PendingResponse) -> bytes:
        return _encode_events(self._end(response, response.choices[0]))

    def _start(self) -> Iterator[dict[str, Any]]:
        if self._has_started:
            return
        self._has_started = True
        usage = _usage(self._response, 0)
        empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield {"type": "message_start", "message": _head(self._request, self._response) | empty}

    def _add_delta(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Return the events for text of the first block. The first text begins the block."""
        yield from self._start()
        start, delta, *_ = _parts(block)
        if not self._has_block:
            self._has_block = True
            yield {"type": "content_block_start", "index": 0, "content_block": start}
        yield {"type": "content_block_delta", "index": 0, "delta": delta}

    def _end(self, response: PendingResponse, choice: Choice) -> Iterator[dict[str, Any]]:
        yield from self._start()
        blocks = _blocks(choice)
        if self._has_block:
            # Send only the part after the text that was already sent.
            more = self._sent_text.more(choice)
            kind = blocks[0]["type"]
            blocks[0] |= {"thinking": more.reasoning} if kind == "thinking" else {"text": more.content}
        for index, block in enumerate(blocks):
            start, *deltas = _parts(block)
            if index or not self._has_block:
                yield {"type": "content_block_start", "index": index, "content_block": start}
            for delta in deltas:
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        stop_fields = {"stop_reason": _stop_reason(choice), "stop_sequence": choice.stop}
        yield {"type": "message_delta", "delta": stop_fields, "usage": {"output_tokens": response.tokens}}
        yield {"type": "message_stop"}


def _encode_events(events: Iterator[dict[str, Any]]) -> bytes:
    return b"".join(event(data, data["type"]) for data in events)


def _parts(block: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the empty block that begins a stream, and the part that is added to it."""
    match block["type"]:
        case "thinking":
            return [
                block | {"thinking": "", "signature": ""},
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        case "text":
            return [block | {"text": ""}, {"type": "text_delta", "text": block["text"]}]
        case _:
            written = orjson.dumps(block["input"]).decode()
            return [block | {"input": {}}, {"type": "input_json_delta", "partial_json": written}]


def _stop_reason(choice: Choice) -> str:
    if choice.stop is not None and choice.finish == "stop":
        return "stop_sequence"
    return {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[choice.finish]


def _usage(response: PendingResponse, sampled: int) -> dict[str, Any]:
    return {
        "input_tokens": response.prompt_tokens - response.cached_tokens,
        "output_tokens": sampled,
        "cache_read_input_tokens": response.cached_tokens,
        "cache_creation_input_tokens": 0,
    }
