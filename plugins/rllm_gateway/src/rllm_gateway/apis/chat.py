"""OpenAI's chat-completions API: answers and events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from rllm_gateway.answer import Answer, Choice
from rllm_gateway.apis.chat_request import read
from rllm_gateway.apis.openai_errors import error_body, error_object
from rllm_gateway.asked import Asked
from rllm_gateway.events import event
from rllm_gateway.refusals import RefusedError

DONE = b"data: [DONE]\n\n"


class ChatApi:
    """See `Api`."""

    read = staticmethod(read)
    error = staticmethod(error_body)

    def answer(self, asked: Asked, answer: Answer) -> bytes:
        choices = [
            {
                "index": index,
                "message": choice.message | {"refusal": None},
                "finish_reason": choice.finish,
                "logprobs": _logprobs(choice) if asked.logprobs else None,
            }
            for index, choice in enumerate(answer.choices)
        ]
        said = _head(asked, answer, "chat.completion") | {"choices": choices, "usage": _usage(answer)}
        return orjson.dumps(said)

    def events(self, asked: Asked, answer: Answer) -> bytes:
        head = _head(asked, answer, "chat.completion.chunk")
        chunks = [
            event(head | {"choices": [chunk]})
            for index, choice in enumerate(answer.choices)
            for chunk in _chunks(index, choice, asked)
        ]
        if (asked.sent.get("stream_options") or {}).get("include_usage"):
            chunks.append(event(head | {"choices": [], "usage": _usage(answer)}))
        return b"".join(chunks) + DONE

    def error_event(self, refused: RefusedError) -> bytes:
        return event({"error": error_object(refused)})


def _head(asked: Asked, answer: Answer, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": answer.created, "model": asked.model}


def _chunks(index: int, choice: Choice, asked: Asked) -> Iterator[dict[str, Any]]:
    """A choice in parts: who speaks, thoughts, words, calls, the end."""
    message = choice.message
    deltas: list[dict[str, Any]] = [{"role": "assistant"}]
    if choice.reasoning:
        deltas.append({"reasoning_content": choice.reasoning})
    if choice.content:
        deltas.append({"content": choice.content})
    deltas += [{"tool_calls": [{"index": at} | call]} for at, call in enumerate(message.get("tool_calls", ()))]
    for delta in deltas:
        yield {"index": index, "delta": delta, "finish_reason": None, "logprobs": None}
    logprobs = _logprobs(choice) if asked.logprobs else None
    yield {"index": index, "delta": {}, "finish_reason": choice.finish, "logprobs": logprobs}


def _logprobs(choice: Choice) -> dict[str, Any]:
    return {"content": [token.as_json for token in choice.sampled], "refusal": None}


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.tokens,
        "total_tokens": answer.prompt_tokens + answer.tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": sum(each.reasoning_tokens for each in answer.choices)},
    }
