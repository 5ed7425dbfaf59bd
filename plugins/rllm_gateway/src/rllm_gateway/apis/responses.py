"""OpenAI's Responses API: requests, answers and events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, ClassVar

import orjson

from rllm_gateway.apis import fields
from rllm_gateway.apis.chat import error_body, error_object, read_tool_choice
from rllm_gateway.apis.exchange import Choice, FinalText, ModelRequest, PendingResponse, SentText, event
from rllm_gateway.apis.fields import MessageParts, Outcome, RefusedError, Rules, invalid, reject_unless_ignored
from rllm_gateway.apis.structured import find_required_form, schema_of

RULES = Rules(
    honored=frozenset(
        (
            "input",
            "instructions",
            "max_output_tokens",
            "metadata",
            "stream",
            "tools",
            "tool_choice",
            "user",
            "include",
            "text",
            "top_logprobs",
        )
    ),
    overruled=frozenset(("model", "temperature", "top_p")),
    ignored=frozenset(
        (
            "access_programs",
            "client_metadata",
            "max_tool_calls",
            "parallel_tool_calls",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "reasoning",
            "safety_identifier",
            "service_tier",
            "store",
            "stream_options",
        )
    ),
    refused={
        "background": (False,),
        "background_options": (),
        "context_management": ([],),
        "image": (),
        "moderation": (),
        "truncation": ("disabled",),
    },
    held=frozenset(("conversation", "previous_response_id", "prompt")),
)
WITH_LOGPROBS = "message.output_text.logprobs"
INCLUDED = (WITH_LOGPROBS, "reasoning.encrypted_content")
"""Supported values of ``include``. Reasoning is sent as plain text, so encrypted reasoning is never sent."""
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def read(body: dict[str, Any], unsupported: Any) -> ModelRequest:
    """Raises RefusedError."""
    outcomes = RULES.outcomes(body, unsupported)
    chosen = read_tool_choice(body, None, unsupported, outcomes)
    text = fields.mapping(body, "text")
    form = fields.mapping(text, "format", "text")
    schema = schema_of(form, form, "text.format") if form else None
    if text and schema is None:
        outcomes["text"] = "ignored"
    included = _read_include(body, unsupported, outcomes)
    tools = [_tool(tool, f"tools[{at}]") for at, tool in enumerate(fields.objects(body, "tools"))]
    tools = [] if chosen.none else tools
    reader = _Items(unsupported, outcomes)
    if instructions := fields.optional_text(body, "instructions"):
        reader.messages.append({"role": "system", "content": instructions})
    if isinstance(body.get("input"), str):
        reader.messages.append({"role": "user", "content": body["input"]})
    else:
        for at, item in enumerate(fields.objects(body, "input")):
            reader.add(item, f"input[{at}]")
    if not reader.messages:
        raise invalid("input is empty; send a text or at least one item.", "input")
    return ModelRequest(
        messages=reader.messages,
        tools=tools,
        response_format=find_required_form("text.format", schema, tools, chosen.must_call, chosen.tool),
        max_tokens=fields.read_integer(body, "max_output_tokens", 1, 1 << 31),
        stream=fields.truth(body, "stream"),
        logprobs=WITH_LOGPROBS in included,
        top_logprobs=fields.read_top_logprobs(body, "top_logprobs") if WITH_LOGPROBS in included else 0,
        model=fields.optional_text(body, "model"),
        metadata=fields.mapping(body, "metadata"),
        sent={name: value for name, value in body.items() if name != "input"},
        outcomes=outcomes,
    )


def _read_include(body: Mapping[str, Any], unsupported: Any, outcomes: dict[str, Outcome]) -> list[Any]:
    included = body.get("include", [])
    if not isinstance(included, list):
        raise invalid("include must be a list of texts.", "include")
    if any(each not in INCLUDED for each in included):
        reject_unless_ignored("include", unsupported)
        outcomes["include"] = "ignored"
    return included


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    if fields.text(tool, "type", where) != "function":
        raise invalid(
            f"{where}.type is {tool['type']!r:.80}; only functions are offered to the model.", f"{where}.type"
        )
    function: dict[str, Any] = {"name": fields.text(tool, "name", where)}
    if description := fields.optional_text(tool, "description", where):
        function["description"] = description
    return {"type": "function", "function": function | {"parameters": fields.mapping(tool, "parameters", where)}}


class _Items(MessageParts):
    """Reads items. Consecutive reasoning, text and tool calls become one assistant message."""

    parameter = "input"
    text_keys: ClassVar = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}

    def __init__(self, unsupported: Any, outcomes: dict[str, Outcome]) -> None:
        super().__init__(unsupported, outcomes)
        self.messages = list[dict[str, Any]]()
        self._open: dict[str, Any] | None = None
        """The assistant's message to which further tool calls belong."""

    def add(self, item: Mapping[str, Any], where: str) -> None:
        match item.get("type", "message"):
            case "message":
                self._message(item, where)
            case "reasoning":
                self._reasoning(item, where)
            case "function_call":
                self._assistant().setdefault("tool_calls", []).append(_call(item, where))
            case "function_call_output":
                output = self.read(item.get("output"), f"{where}.output")
                self._say({"role": "tool", "tool_call_id": fields.text(item, "call_id", where), "content": output})
            case "item_reference":
                fields.reject_stored_reference(f"{where}.type")
            case str(kind):
                self.leave_out(kind)
            case _:
                raise invalid(f"{where}.type must be a text.", f"{where}.type")

    def _message(self, item: Mapping[str, Any], where: str) -> None:
        role = ROLES.get(fields.text(item, "role", where))
        if role is None:
            raise invalid(f"{where}.role is none of {', '.join(ROLES)}.", f"{where}.role")
        words = self.read(item.get("content"), f"{where}.content")
        if role != "assistant":
            self._say({"role": role, "content": words})
        elif self._open is not None and not self._open["content"] and "tool_calls" not in self._open:
            self._open["content"] = words
        else:
            self._open = None
            self._assistant()["content"] = words

    def _reasoning(self, item: Mapping[str, Any], where: str) -> None:
        """Begin a message with reasoning."""
        parts = fields.objects(item, "content", where) or fields.objects(item, "summary", where)
        reasoning = "".join(fields.text(part, "text", f"{where}.content") for part in parts)
        self._open = None
        if reasoning:
            self._assistant()["reasoning_content"] = reasoning

    def _assistant(self) -> dict[str, Any]:
        if self._open is None:
            self._say({"role": "assistant", "content": ""})
            self._open = self.messages[-1]
        return self._open

    def _say(self, message: dict[str, Any]) -> None:
        self._open = None
        self.messages.append(message)


def _call(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {
        "id": fields.text(item, "call_id", where),
        "type": "function",
        "function": {
            "name": fields.text(item, "name", where),
            "arguments": fields.arguments(fields.optional_text(item, "arguments", where), where),
        },
    }


class ResponsesApi:
    """See `Api`."""

    read = staticmethod(read)
    error = staticmethod(error_body)

    def answer(self, request: ModelRequest, response: PendingResponse) -> bytes:
        return orjson.dumps(_build_response(request, response))

    def stream(self, request: ModelRequest, response: PendingResponse) -> ResponsesStream:
        return ResponsesStream(request, response)

    def error_event(self, refused: RefusedError) -> bytes:
        error = error_object(refused)
        return event({"type": "error", "error": error, "sequence_number": 0} | error | {"type": "error"}, "error")


def _response(
    request: ModelRequest, response: PendingResponse, status: str, output: list[dict[str, Any]]
) -> dict[str, Any]:
    sent = request.sent
    return {
        "id": f"resp_{response.id}",
        "object": "response",
        "created_at": response.created,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": sent.get("instructions"),
        "max_output_tokens": sent.get("max_output_tokens"),
        "metadata": request.metadata,
        "model": request.model,
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "temperature": None,
        "text": {"format": {"type": "text"}, **(sent.get("text") or {})},
        "tool_choice": sent.get("tool_choice", "auto") if isinstance(sent.get("tool_choice", ""), str) else "auto",
        "tools": [{"strict": None, "parameters": None} | tool for tool in sent.get("tools", ())],
        "top_p": None,
        "truncation": "disabled",
        "user": sent.get("user"),
        "usage": None,
    }


def _build_response(request: ModelRequest, response: PendingResponse) -> dict[str, Any]:
    cut_off = response.choices[0].finish == "length"
    body = _response(request, response, "incomplete" if cut_off else "completed", _output(request, response))
    return body | {"usage": _usage(response), "completed_at": None if cut_off else response.created}


def _output(request: ModelRequest, response: PendingResponse) -> list[dict[str, Any]]:
    choice = response.choices[0]
    status = "incomplete" if choice.finish == "length" else "completed"
    items = list[dict[str, Any]]()
    if choice.reasoning:
        items.append(_reasoning(response, choice.reasoning))
    if choice.content or not choice.tool_calls:
        items.append(_message(response, choice.content, _logprobs(request, choice)) | {"status": status})
    for at, call in enumerate(choice.tool_calls):
        head = {"id": f"fc_{response.id}_{at}", "type": "function_call", "status": "completed", "call_id": call["id"]}
        items.append(head | call["function"])
    return items


def _reasoning(response: PendingResponse, text: str) -> dict[str, Any]:
    reasoning = [{"type": "reasoning_text", "text": text}]
    return {"id": f"rs_{response.id}", "type": "reasoning", "summary": [], "content": reasoning}


def _message(response: PendingResponse, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
    head = {"id": f"msg_{response.id}", "type": "message", "role": "assistant", "status": "in_progress"}
    return head | {"content": [part]}


class ResponsesStream:
    """See `EventStream`. Text that is sent early is in the first item, which is reasoning, or else a message."""

    def __init__(self, request: ModelRequest, response: PendingResponse) -> None:
        self._request = request
        self._response = response
        self._numbers = count()
        self._sent_text = SentText()
        self._has_started = self._has_item = False

    def add(self, index: int, final: FinalText) -> bytes:
        more = self._sent_text.more(final)
        if more.reasoning:
            return self._encode_events(self._add_delta(_reasoning(self._response, more.reasoning)))
        return self._encode_events(self._add_delta(_message(self._response, more.content, []))) if more.content else b""

    def end(self, response: PendingResponse) -> bytes:
        return self._encode_events(self._end(response))

    def _encode_events(self, events: Iterator[dict[str, Any]]) -> bytes:
        numbered = (data | {"sequence_number": next(self._numbers)} for data in events)
        return b"".join(event(data, data["type"]) for data in numbered)

    def _start(self) -> Iterator[dict[str, Any]]:
        if self._has_started:
            return
        self._has_started = True
        response = _response(self._request, self._response, "in_progress", [])
        yield {"type": "response.created", "response": response}
        yield {"type": "response.in_progress", "response": response}

    def _add_delta(self, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Return the events for text of the first item. The first text begins the item."""
        yield from self._start()
        if not self._has_item:
            self._has_item = True
            yield from _begin_item(0, item)
        yield _item_address(0, item) | _delta(item)

    def _end(self, response: PendingResponse) -> Iterator[dict[str, Any]]:
        yield from self._start()
        whole = _build_response(self._request, response)
        more = self._sent_text.more(response.choices[0])
        for index, item in enumerate(whole["output"]):
            delta = _delta(item)
            if index == 0 and self._has_item:
                delta["delta"] = more.reasoning if item["type"] == "reasoning" else more.content
            else:
                yield from _begin_item(index, item)
            yield _item_address(index, item) | delta
            yield from (_item_address(index, item) | data for data in _end_item(item))
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        yield {"type": f"response.{whole['status']}", "response": whole}


def _item_address(index: int, item: dict[str, Any]) -> dict[str, Any]:
    content = {} if item["type"] == "function_call" else {"content_index": 0}
    return {"output_index": index, "item_id": item["id"]} | content


def _begin_item(index: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events that begin an empty item."""
    empty: dict[str, Any] = {"function_call": {"arguments": ""}}.get(item["type"], {"content": []})
    added = item | empty | ({} if item["type"] == "reasoning" else {"status": "in_progress"})
    yield {"type": "response.output_item.added", "output_index": index, "item": added}
    if item["type"] == "message":
        part = item["content"][0] | {"text": "", "logprobs": []}
        yield _item_address(index, item) | {"type": "response.content_part.added", "part": part}


def _delta(item: dict[str, Any]) -> dict[str, Any]:
    """Return the event that adds an item's whole text to it."""
    if item["type"] == "function_call":
        return {"type": "response.function_call_arguments.delta", "delta": item["arguments"]}
    [part] = item["content"]
    if item["type"] == "reasoning":
        return {"type": "response.reasoning_text.delta", "delta": part["text"]}
    return {"type": "response.output_text.delta", "delta": part["text"], "logprobs": part["logprobs"]}


def _end_item(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events that report the end of an item's text."""
    if item["type"] == "function_call":
        yield {
            "type": "response.function_call_arguments.done",
            "arguments": item["arguments"],
            "name": item["name"],
        }
        return
    [part] = item["content"]
    if item["type"] == "reasoning":
        yield {"type": "response.reasoning_text.done", "text": part["text"]}
        return
    yield {"type": "response.output_text.done", "text": part["text"], "logprobs": part["logprobs"]}
    yield {"type": "response.content_part.done", "part": part}


def _logprobs(request: ModelRequest, choice: Choice) -> list[dict[str, Any]]:
    return [token.as_json for token in choice.sampled] if request.logprobs else []


def _usage(response: PendingResponse) -> dict[str, Any]:
    return {
        "input_tokens": response.prompt_tokens,
        "input_tokens_details": {"cached_tokens": response.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": response.tokens,
        "output_tokens_details": {"reasoning_tokens": sum(each.reasoning_tokens for each in response.choices)},
        "total_tokens": response.prompt_tokens + response.tokens,
    }
