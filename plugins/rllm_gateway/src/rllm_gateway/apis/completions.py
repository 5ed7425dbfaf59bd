"""OpenAI's completions API, which is older than chat completions. It continues text or tokens without a template."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import orjson

from rllm_gateway.apis import fields
from rllm_gateway.apis.chat import DONE, error_body, error_object, make_head, usage
from rllm_gateway.apis.exchange import Choice, FinalText, ModelRequest, PendingResponse, SentText, event
from rllm_gateway.apis.fields import RefusedError, Rules, invalid
from rllm_gateway.apis.tokens import read_token_ids

DEFAULT_TOKENS = 16
"""OpenAI's default of ``max_tokens`` in this API."""
RULES = Rules(
    honored=frozenset(
        ("prompt", "max_tokens", "stop", "n", "stream", "stream_options", "logprobs", "user", "add_special_tokens")
    ),
    overruled=frozenset(("model", "temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")),
    ignored=frozenset(),
    refused={"best_of": (1,), "echo": (False,), "logit_bias": ({},), "suffix": ("",)},
)
"""Classes of the parameters. vLLM has ``add_special_tokens`` too."""


class CompletionsApi:
    """Translation of the completions API, as `Api` describes."""

    error = staticmethod(error_body)

    def read(self, body: dict[str, Any], unsupported: Any) -> ModelRequest:
        """Read a request. Its prompt is one string, or one list of token ids.

        Raises:
            RefusedError: the request is not valid.
        """
        outcomes = RULES.outcomes(body, unsupported)
        fields.mapping(body, "stream_options")
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            [prompt] = prompt
        elif isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            raise invalid("prompt has several prompts. Send them one by one.", "prompt", "unsupported_parameter")
        if prompt is not None and not isinstance(prompt, str | list):
            raise invalid("prompt must be a text or a list of token ids.", "prompt")
        if not prompt:
            raise invalid("prompt is empty; send a text or token ids.", "prompt")
        top = fields.read_integer(body, "logprobs", 0, fields.MOST_TOP)
        return ModelRequest(
            prompt_text=prompt if isinstance(prompt, str) else None,
            prompt_ids=None if isinstance(prompt, str) else read_token_ids({"prompt": prompt}, "prompt"),
            prompt_parameter="prompt",
            adds_special_tokens=fields.truth({"add_special_tokens": True} | body, "add_special_tokens"),
            is_plain=True,
            n=fields.read_count(body, "n"),
            max_tokens=fields.read_integer(body, "max_tokens", 1, 1 << 31) or DEFAULT_TOKENS,
            stop=fields.stop_texts(body, "stop"),
            stream=fields.truth(body, "stream"),
            logprobs=top is not None,
            top_logprobs=top or 0,
            model=fields.optional_text(body, "model"),
            sent={name: value for name, value in body.items() if name != "prompt"},
            outcomes=outcomes,
        )

    def answer(self, request: ModelRequest, response: PendingResponse) -> bytes:
        """Return the body of a response."""
        choices = [_choice(index, choice, request, choice.content) for index, choice in enumerate(response.choices)]
        head = make_head("cmpl", "text_completion", request, response)
        return orjson.dumps(head | {"choices": choices, "usage": usage(response)})

    def stream(self, request: ModelRequest, response: PendingResponse) -> CompletionsStream:
        """Begin a streamed response."""
        return CompletionsStream(request, response)

    def error_event(self, refused: RefusedError) -> bytes:
        """Return the event that ends a stream with an error."""
        return event({"error": error_object(refused)})


class CompletionsStream:
    """The events of a streamed completion, as `EventStream` describes."""

    def __init__(self, request: ModelRequest, response: PendingResponse) -> None:
        self._request = request
        self._head = make_head("cmpl", "text_completion", request, response)
        self._sent_text: defaultdict[int, SentText] = defaultdict(SentText)

    def add(self, index: int, final: FinalText) -> bytes:
        """Return the event with new text. Empty if there is none."""
        text = self._sent_text[index].more(final).content
        return self._chunk({"index": index, "text": text, "finish_reason": None, "logprobs": None}) if text else b""

    def end(self, response: PendingResponse) -> bytes:
        """Return the last event of each choice, and the end of the stream."""
        chunks = [
            self._chunk(_choice(index, choice, self._request, self._sent_text[index].more(choice).content))
            for index, choice in enumerate(response.choices)
        ]
        if (self._request.sent.get("stream_options") or {}).get("include_usage"):
            chunks.append(event(self._head | {"choices": [], "usage": usage(response)}))
        return b"".join(chunks) + DONE

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        return event(self._head | {"choices": [choice]})


def _choice(index: int, choice: Choice, request: ModelRequest, text: str) -> dict[str, Any]:
    logprobs = _logprobs(choice) if request.logprobs else None
    return {"index": index, "text": text, "finish_reason": choice.finish, "logprobs": logprobs}


def _logprobs(choice: Choice) -> dict[str, Any]:
    """Return the log-probs of all tokens of a choice."""
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
