"""Anthropic's Messages API: answers and events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from rllm_gateway.apis.messages_request import read
from rllm_gateway.events import event
from rllm_gateway.exchange import Answer, Asked, Begun, Choice, Settled, Told
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

SIGNATURE = "rllm"
"""Of thoughts: clients send it back, and nothing is read from it."""


class MessagesApi:
    """See `Api`."""

    read = staticmethod(read)

    def answer(self, asked: Asked, answer: Answer) -> bytes:
        choice = answer.choices[0]
        ending = {"stop_reason": _stop_reason(choice), "stop_sequence": choice.stop}
        said = _head(asked, answer) | ending
        return orjson.dumps(said | {"content": _blocks(choice), "usage": _usage(answer, answer.tokens)})

    def stream(self, asked: Asked, begun: Begun) -> MessagesStream:
        return MessagesStream(asked, begun)

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


def _head(asked: Asked, begun: Begun) -> dict[str, Any]:
    return {"id": f"msg_{begun.id}", "type": "message", "role": "assistant", "model": asked.model}


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
    """See `EventStream`. Text that is sent early is in the first block: thoughts, or else text."""

    def __init__(self, asked: Asked, begun: Begun) -> None:
        self._asked = asked
        self._begun = begun
        self._told = Told()
        self._has_started = self._has_block = False

    def add(self, index: int, settled: Settled) -> bytes:
        more = self._told.more(settled)
        if more.reasoning:
            return _written(self._added({"type": "thinking", "thinking": more.reasoning, "signature": SIGNATURE}))
        return _written(self._added({"type": "text", "text": more.content})) if more.content else b""

    def end(self, answer: Answer) -> bytes:
        return _written(self._end(answer, answer.choices[0]))

    def _start(self) -> Iterator[dict[str, Any]]:
        if self._has_started:
            return
        self._has_started = True
        usage = _usage(self._begun, 0)
        begun: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield {"type": "message_start", "message": _head(self._asked, self._begun) | begun}

    def _added(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Text of the first block, which is begun by it."""
        yield from self._start()
        start, delta, *_ = _parts(block)
        if not self._has_block:
            self._has_block = True
            yield {"type": "content_block_start", "index": 0, "content_block": start}
        yield {"type": "content_block_delta", "index": 0, "delta": delta}

    def _end(self, answer: Answer, choice: Choice) -> Iterator[dict[str, Any]]:
        yield from self._start()
        blocks = _blocks(choice)
        if self._has_block:
            # Only what follows the text that was sent is new of it.
            more = self._told.more(choice)
            kind = blocks[0]["type"]
            blocks[0] |= {"thinking": more.reasoning} if kind == "thinking" else {"text": more.content}
        for index, block in enumerate(blocks):
            start, *deltas = _parts(block)
            if index or not self._has_block:
                yield {"type": "content_block_start", "index": index, "content_block": start}
            for delta in deltas:
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        ending = {"stop_reason": _stop_reason(choice), "stop_sequence": choice.stop}
        yield {"type": "message_delta", "delta": ending, "usage": {"output_tokens": answer.tokens}}
        yield {"type": "message_stop"}


def _written(events: Iterator[dict[str, Any]]) -> bytes:
    return b"".join(event(data, data["type"]) for data in events)


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


def _usage(begun: Begun, sampled: int) -> dict[str, Any]:
    return {
        "input_tokens": begun.prompt_tokens - begun.cached_tokens,
        "output_tokens": sampled,
        "cache_read_input_tokens": begun.cached_tokens,
        "cache_creation_input_tokens": 0,
    }
