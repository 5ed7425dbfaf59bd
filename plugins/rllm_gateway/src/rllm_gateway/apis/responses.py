"""OpenAI's Responses API: answers and events."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import orjson

from rllm_gateway.apis.openai_errors import error_body, error_object
from rllm_gateway.apis.responses_request import read
from rllm_gateway.events import event
from rllm_gateway.exchange import Answer, Asked, Begun, Choice, Settled, Told
from rllm_gateway.refusals import RefusedError


class ResponsesApi:
    """See `Api`."""

    read = staticmethod(read)
    error = staticmethod(error_body)

    def answer(self, asked: Asked, answer: Answer) -> bytes:
        return orjson.dumps(_whole(asked, answer))

    def stream(self, asked: Asked, begun: Begun) -> ResponsesStream:
        return ResponsesStream(asked, begun)

    def error_event(self, refused: RefusedError) -> bytes:
        said = error_object(refused)
        return event({"type": "error", "error": said, "sequence_number": 0} | said | {"type": "error"}, "error")


def _response(asked: Asked, begun: Begun, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    sent = asked.sent
    return {
        "id": f"resp_{begun.id}",
        "object": "response",
        "created_at": begun.created,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": sent.get("instructions"),
        "max_output_tokens": sent.get("max_output_tokens"),
        "metadata": asked.metadata,
        "model": asked.model,
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


def _whole(asked: Asked, answer: Answer) -> dict[str, Any]:
    cut_off = answer.choices[0].finish == "length"
    said = _response(asked, answer, "incomplete" if cut_off else "completed", _output(asked, answer))
    return said | {"usage": _usage(answer), "completed_at": None if cut_off else answer.created}


def _output(asked: Asked, answer: Answer) -> list[dict[str, Any]]:
    choice = answer.choices[0]
    status = "incomplete" if choice.finish == "length" else "completed"
    items = list[dict[str, Any]]()
    if choice.reasoning:
        items.append(_reasoning(answer, choice.reasoning))
    if choice.content or not choice.tool_calls:
        items.append(_message(answer, choice.content, _logprobs(asked, choice)) | {"status": status})
    for at, call in enumerate(choice.tool_calls):
        head = {"id": f"fc_{answer.id}_{at}", "type": "function_call", "status": "completed", "call_id": call["id"]}
        items.append(head | call["function"])
    return items


def _reasoning(begun: Begun, text: str) -> dict[str, Any]:
    thought = [{"type": "reasoning_text", "text": text}]
    return {"id": f"rs_{begun.id}", "type": "reasoning", "summary": [], "content": thought}


def _message(begun: Begun, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
    head = {"id": f"msg_{begun.id}", "type": "message", "role": "assistant", "status": "in_progress"}
    return head | {"content": [part]}


class ResponsesStream:
    """See `EventStream`. Text that is sent early is in the first item: thoughts, or else a message."""

    def __init__(self, asked: Asked, begun: Begun) -> None:
        self._asked = asked
        self._begun = begun
        self._numbers = count()
        self._told = Told()
        self._has_started = self._has_item = False

    def add(self, index: int, settled: Settled) -> bytes:
        more = self._told.more(settled)
        if more.reasoning:
            return self._written(self._added(_reasoning(self._begun, more.reasoning)))
        return self._written(self._added(_message(self._begun, more.content, []))) if more.content else b""

    def end(self, answer: Answer) -> bytes:
        return self._written(self._end(answer))

    def _written(self, events: Iterator[dict[str, Any]]) -> bytes:
        numbered = (data | {"sequence_number": next(self._numbers)} for data in events)
        return b"".join(event(data, data["type"]) for data in numbered)

    def _start(self) -> Iterator[dict[str, Any]]:
        if self._has_started:
            return
        self._has_started = True
        begun = _response(self._asked, self._begun, "in_progress", [])
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}

    def _added(self, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Text of the first item, which is begun by it."""
        yield from self._start()
        if not self._has_item:
            self._has_item = True
            yield from _opened(0, item)
        yield _place(0, item) | _delta(item)

    def _end(self, answer: Answer) -> Iterator[dict[str, Any]]:
        yield from self._start()
        whole = _whole(self._asked, answer)
        more = self._told.more(answer.choices[0])
        for index, item in enumerate(whole["output"]):
            delta = _delta(item)
            if index == 0 and self._has_item:
                delta["delta"] = more.reasoning if item["type"] == "reasoning" else more.content
            else:
                yield from _opened(index, item)
            yield _place(index, item) | delta
            yield from (_place(index, item) | data for data in _done(item))
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        yield {"type": f"response.{whole['status']}", "response": whole}


def _place(index: int, item: dict[str, Any]) -> dict[str, Any]:
    content = {} if item["type"] == "function_call" else {"content_index": 0}
    return {"output_index": index, "item_id": item["id"]} | content


def _opened(index: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """An item before anything is added to it."""
    empty: dict[str, Any] = {"function_call": {"arguments": ""}}.get(item["type"], {"content": []})
    added = item | empty | ({} if item["type"] == "reasoning" else {"status": "in_progress"})
    yield {"type": "response.output_item.added", "output_index": index, "item": added}
    if item["type"] == "message":
        part = item["content"][0] | {"text": "", "logprobs": []}
        yield _place(index, item) | {"type": "response.content_part.added", "part": part}


def _delta(item: dict[str, Any]) -> dict[str, Any]:
    """All text of an item, as it is added to it."""
    if item["type"] == "function_call":
        return {"type": "response.function_call_arguments.delta", "delta": item["arguments"]}
    [part] = item["content"]
    if item["type"] == "reasoning":
        return {"type": "response.reasoning_text.delta", "delta": part["text"]}
    return {"type": "response.output_text.delta", "delta": part["text"], "logprobs": part["logprobs"]}


def _done(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The text of an item is whole."""
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


def _logprobs(asked: Asked, choice: Choice) -> list[dict[str, Any]]:
    return [token.as_json for token in choice.sampled] if asked.logprobs else []


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": answer.tokens,
        "output_tokens_details": {"reasoning_tokens": sum(each.reasoning_tokens for each in answer.choices)},
        "total_tokens": answer.prompt_tokens + answer.tokens,
    }
