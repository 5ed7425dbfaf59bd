"""OpenAI's completions API, which is older than chat completions. It continues a prompt of text or tokens."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import orjson

from rllm_gateway import fields
from rllm_gateway.apis.openai import error_body, error_object
from rllm_gateway.exchange import MOST_CHOICES, Answer, Asked, Begun, Choice, Settled, Told, event
from rllm_gateway.fields import Rules
from rllm_gateway.refusals import RefusedError, invalid

DONE = b"data: [DONE]\n\n"
DEFAULT_TOKENS = 16
"""OpenAI's default of `max_tokens` in this API."""
MOST_STOPS = 16
MOST_TOP = 5
RULES = Rules(
    honoured=frozenset(("prompt", "max_tokens", "stop", "n", "stream", "stream_options", "logprobs", "user")),
    overruled=frozenset(("model", "temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")),
    ignored=frozenset(),
    refused={"best_of": (1,), "echo": (False,), "logit_bias": ({},), "suffix": ("",)},
)


class CompletionsApi:
    """See `Api`."""

    error = staticmethod(error_body)

    def read(self, body: dict[str, Any], unsupported: Any) -> Asked:
        """Raises RefusedError."""
        outcomes = RULES.outcomes(body, unsupported)
        fields.mapping(body, "stream_options")
        prompt = _prompt(body.get("prompt"))
        top = fields.whole(body, "logprobs", 0, MOST_TOP)
        content = prompt if isinstance(prompt, str) else str(prompt)
        return Asked(
            messages=[{"role": "user", "name": "prompt", "content": content}],
            raw_prompt=prompt,
            n=fields.whole(body, "n", 1, MOST_CHOICES) or 1,
            max_tokens=fields.whole(body, "max_tokens", 1, 1 << 31) or DEFAULT_TOKENS,
            stop=fields.stop_texts(body, "stop", MOST_STOPS),
            stream=fields.truth(body, "stream"),
            logprobs=top is not None,
            top_logprobs=top or 0,
            model=fields.optional_text(body, "model"),
            sent={name: value for name, value in body.items() if name != "prompt"},
            outcomes=outcomes,
        )

    def answer(self, asked: Asked, answer: Answer) -> bytes:
        choices = [_choice(index, choice, asked) for index, choice in enumerate(answer.choices)]
        return orjson.dumps(_head(asked, answer) | {"choices": choices, "usage": _usage(answer)})

    def stream(self, asked: Asked, begun: Begun) -> CompletionsStream:
        return CompletionsStream(asked, begun)

    def error_event(self, refused: RefusedError) -> bytes:
        return event({"error": error_object(refused)})


class CompletionsStream:
    """See `EventStream`."""

    def __init__(self, asked: Asked, begun: Begun) -> None:
        self._asked = asked
        self._head = _head(asked, begun)
        self._told: defaultdict[int, Told] = defaultdict(Told)

    def add(self, index: int, settled: Settled) -> bytes:
        text = self._told[index].more(settled).content
        return self._chunk({"index": index, "text": text, "finish_reason": None, "logprobs": None}) if text else b""

    def end(self, answer: Answer) -> bytes:
        chunks = [
            self._chunk(_choice(index, choice, self._asked) | {"text": self._told[index].more(choice).content})
            for index, choice in enumerate(answer.choices)
        ]
        if (self._asked.sent.get("stream_options") or {}).get("include_usage"):
            chunks.append(event(self._head | {"choices": [], "usage": _usage(answer)}))
        return b"".join(chunks) + DONE

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        return event(self._head | {"choices": [choice]})


def _prompt(value: Any) -> str | tuple[int, ...]:
    match value:
        case [str(only)] | str(only):
            return only
        case [[*ids]] | [*ids] if ids and all(isinstance(each, int) and 0 <= each < 1 << 31 for each in ids):
            return tuple(ids)
    raise invalid("prompt must be one string, or one list of token ids. Send several prompts one by one.", "prompt")


def _head(asked: Asked, begun: Begun) -> dict[str, Any]:
    return {"id": f"cmpl-{begun.id}", "object": "text_completion", "created": begun.created, "model": asked.model}


def _choice(index: int, choice: Choice, asked: Asked) -> dict[str, Any]:
    logprobs = _logprobs(choice) if asked.logprobs else None
    return {"index": index, "text": choice.content, "finish_reason": choice.finish, "logprobs": logprobs}


def _logprobs(choice: Choice) -> dict[str, Any]:
    offsets, end = list[int](), 0
    for token in choice.sampled:
        offsets.append(end)
        end += len(token.text)
    return {
        "tokens": [token.text for token in choice.sampled],
        "token_logprobs": [token.known_logprob for token in choice.sampled],
        "top_logprobs": [{each.text: each.known_logprob for each in token.top} for token in choice.sampled],
        "text_offset": offsets,
    }


def _usage(answer: Answer) -> dict[str, Any]:
    total = answer.prompt_tokens + answer.tokens
    return {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.tokens, "total_tokens": total}
