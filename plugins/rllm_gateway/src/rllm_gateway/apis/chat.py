"""OpenAI's chat-completions API: answers and events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import orjson

from rllm_gateway.apis.chat_request import read
from rllm_gateway.apis.openai import error_body, error_object
from rllm_gateway.exchange import Answer, Asked, Begun, Choice, Settled, Told, event
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

    def stream(self, asked: Asked, begun: Begun) -> ChatStream:
        return ChatStream(asked, begun)

    def error_event(self, refused: RefusedError) -> bytes:
        return event({"error": error_object(refused)})


class ChatStream:
    """See `EventStream`."""

    def __init__(self, asked: Asked, begun: Begun) -> None:
        self._asked = asked
        self._head = _head(asked, begun, "chat.completion.chunk")
        self._told: defaultdict[int, Told] = defaultdict(Told)

    def add(self, index: int, settled: Settled) -> bytes:
        return b"".join(map(self._chunk, self._deltas(index, settled)))

    def end(self, answer: Answer) -> bytes:
        ends = (map(self._chunk, self._end(*each)) for each in enumerate(answer.choices))
        chunks = [chunk for end in ends for chunk in end]
        if (self._asked.sent.get("stream_options") or {}).get("include_usage"):
            chunks.append(event(self._head | {"choices": [], "usage": _usage(answer)}))
        return b"".join(chunks) + DONE

    def _chunk(self, chunk: dict[str, Any]) -> bytes:
        return event(self._head | {"choices": [chunk]})

    def _deltas(self, index: int, settled: Settled | Choice) -> Iterator[dict[str, Any]]:
        """New text of a choice. Its first chunk has the role."""
        is_first = index not in self._told
        if is_first and not (settled.reasoning or settled.content or isinstance(settled, Choice)):
            return
        more = self._told[index].more(settled)
        deltas: list[dict[str, Any]] = [{"role": "assistant"}] if is_first else []
        if more.reasoning:
            deltas.append({"reasoning_content": more.reasoning})
        if more.content:
            deltas.append({"content": more.content})
        for delta in deltas:
            yield {"index": index, "delta": delta, "finish_reason": None, "logprobs": None}

    def _end(self, index: int, choice: Choice) -> Iterator[dict[str, Any]]:
        """The rest of the text, calls, the end."""
        yield from self._deltas(index, choice)
        for at, call in enumerate(choice.tool_calls):
            delta = {"tool_calls": [{"index": at} | call]}
            yield {"index": index, "delta": delta, "finish_reason": None, "logprobs": None}
        logprobs = _logprobs(choice) if self._asked.logprobs else None
        yield {"index": index, "delta": {}, "finish_reason": choice.finish, "logprobs": logprobs}


def _head(asked: Asked, begun: Begun, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{begun.id}", "object": kind, "created": begun.created, "model": asked.model}


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
