"""OpenAI's Responses API: answers and events."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import orjson

from rllm_gateway.answer import Answer, Choice
from rllm_gateway.apis.openai_errors import error_body, error_object
from rllm_gateway.apis.responses_request import read
from rllm_gateway.asked import Asked
from rllm_gateway.events import event
from rllm_gateway.refusals import RefusedError


class ResponsesApi:
    """See `Api`."""

    read = staticmethod(read)
    error = staticmethod(error_body)

    def answer(self, asked: Asked, answer: Answer) -> bytes:
        return orjson.dumps(_whole(asked, answer))

    def events(self, asked: Asked, answer: Answer) -> bytes:
        numbers = count()
        numbered = (data | {"sequence_number": next(numbers)} for data in _events(asked, answer))
        return b"".join(event(data, data["type"]) for data in numbered)

    def error_event(self, refused: RefusedError) -> bytes:
        said = error_object(refused)
        return event({"type": "error", "error": said, "sequence_number": 0} | said | {"type": "error"}, "error")


def _response(asked: Asked, answer: Answer, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    sent = asked.sent
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": answer.created,
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
        thought = [{"type": "reasoning_text", "text": choice.reasoning}]
        items.append({"id": f"rs_{answer.id}", "type": "reasoning", "summary": [], "content": thought})
    if choice.content or not choice.tool_calls:
        part = {"type": "output_text", "text": choice.content, "annotations": [], "logprobs": _logprobs(asked, choice)}
        head = {"id": f"msg_{answer.id}", "type": "message", "role": "assistant", "status": status}
        items.append(head | {"content": [part]})
    for at, call in enumerate(choice.tool_calls):
        head = {"id": f"fc_{answer.id}_{at}", "type": "function_call", "status": "completed", "call_id": call["id"]}
        items.append(head | call["function"])
    return items


def _events(asked: Asked, answer: Answer) -> Iterator[dict[str, Any]]:
    begun = _response(asked, answer, "in_progress", [])
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    whole = _whole(asked, answer)
    for index, item in enumerate(whole["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        empty: dict[str, Any] = {"function_call": {"arguments": ""}}.get(item["type"], {"content": []})
        added = item | empty | ({} if item["type"] == "reasoning" else {"status": "in_progress"})
        yield {"type": "response.output_item.added", "output_index": index, "item": added}
        yield from (place | data for data in _parts(item))
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{whole['status']}", "response": whole}


def _parts(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What is added to an item, and that it is whole."""
    if item["type"] == "function_call":
        written = item["arguments"]
        yield {"type": "response.function_call_arguments.delta", "delta": written}
        yield {"type": "response.function_call_arguments.done", "arguments": written, "name": item["name"]}
        return
    [part] = item["content"]
    place = {"content_index": 0}
    if item["type"] == "reasoning":
        yield place | {"type": "response.reasoning_text.delta", "delta": part["text"]}
        yield place | {"type": "response.reasoning_text.done", "text": part["text"]}
        return
    said = place | {"logprobs": part["logprobs"]}
    yield place | {"type": "response.content_part.added", "part": part | {"text": "", "logprobs": []}}
    yield said | {"type": "response.output_text.delta", "delta": part["text"]}
    yield said | {"type": "response.output_text.done", "text": part["text"]}
    yield place | {"type": "response.content_part.done", "part": part}


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
