"""Anthropic's Messages API: answers and events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from rllm_gateway.answer import Answer, Choice
from rllm_gateway.apis.messages_request import read
from rllm_gateway.asked import Asked
from rllm_gateway.events import event
from rllm_gateway.refusals import Kind, RefusedError

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


class MessagesApi:
    """See `Api`."""

    read = staticmethod(read)

    def answer(self, asked: Asked, answer: Answer) -> bytes:
        choice = answer.choices[0]
        ending = {"stop_reason": _stop_reason(choice), "stop_sequence": choice.stop}
        said = _head(asked, answer) | ending
        return orjson.dumps(said | {"content": _blocks(choice), "usage": _usage(answer, answer.tokens)})

    def events(self, asked: Asked, answer: Answer) -> bytes:
        return b"".join(event(data, data["type"]) for data in _events(asked, answer))

    def error(self, refused: RefusedError) -> bytes:
        return orjson.dumps(_error(refused))

    def error_event(self, refused: RefusedError) -> bytes:
        return event(_error(refused), "error")


def _error(refused: RefusedError) -> dict[str, Any]:
    error: dict[str, Any] = {"type": ERRORS[refused.kind], "message": refused.message}
    if refused.code is not None:
        # Where clients look for what they can do about it.
        error["details"] = {"error_code": refused.code}
    return {"type": "error", "error": error}


def _head(asked: Asked, answer: Answer) -> dict[str, Any]:
    return {"id": f"msg_{answer.id}", "type": "message", "role": "assistant", "model": asked.model}


def _blocks(choice: Choice) -> list[dict[str, Any]]:
    blocks = list[dict[str, Any]]()
    if choice.reasoning:
        # Clients send the signature back; nothing is read from it.
        blocks.append({"type": "thinking", "thinking": choice.reasoning, "signature": "rllm"})
    if choice.content or not choice.tool_calls:
        blocks.append({"type": "text", "text": choice.content})
    for call in choice.tool_calls:
        function = call["function"]
        arguments = orjson.loads(function["arguments"])
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
    return blocks


def _events(asked: Asked, answer: Answer) -> Iterator[dict[str, Any]]:
    choice = answer.choices[0]
    begun: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(answer, 0)}
    yield {"type": "message_start", "message": _head(asked, answer) | begun}
    for index, block in enumerate(_blocks(choice)):
        start, *deltas = _parts(block)
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ending = {"stop_reason": _stop_reason(choice), "stop_sequence": choice.stop}
    yield {"type": "message_delta", "delta": ending, "usage": {"output_tokens": answer.tokens}}
    yield {"type": "message_stop"}


def _parts(block: dict[str, Any]) -> list[dict[str, Any]]:
    """A block as it begins, and what is added to it."""
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


def _usage(answer: Answer, sampled: int) -> dict[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens - answer.cached_tokens,
        "output_tokens": sampled,
        "cache_read_input_tokens": answer.cached_tokens,
        "cache_creation_input_tokens": 0,
    }
