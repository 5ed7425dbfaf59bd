"""A streamed response is the unstreamed one, cut into pieces: nothing is sent that a later token changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from gateway_world import CALL
from hypothesis import given, strategies as st
from text_tokenizers import END_THINK, THINK, cleaned, fallback, lossy, renderer_of_bytes
from tool_tokenizer import STOP

from rllm_core.contracts.engine import Completion
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_gateway.apis import ChatApi, CompletionsApi, GenerateApi, MessagesApi, ResponsesApi
from rllm_gateway.apis.exchange import LOOKS, Api, Choice, FinalText, ModelRequest, PendingResponse, SentText
from rllm_gateway.apis.fields import RefusedError
from rllm_gateway.apis.structured import ResponseFormat
from rllm_gateway.sampling.link_trainer import cut_at_texts
from rllm_gateway.sampling.rendering import choice_of

TOOLS: Any = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]
PIECES: list[list[int]] = [
    *(list(text.encode()) for text in ("a", "é", "😀", " ", "\n", ".", " '", "n't", "STOP", "ST", "<ca", "{", CALL)),
    *(list(text.encode()) for text in ("<call>", "</call>", '{"name": "look_up", "arguments": {}}')),
    *([byte] for byte in (0x80, 0xC3, 0xE2, 0xF0, 0xFF)),
    [THINK],
    [END_THINK],
    [STOP],
]


def completion(ids: Sequence[int]) -> Completion:
    logprobs = np.zeros(len(ids), np.float32)
    return Completion(token_ids=np.array(ids, np.int32), logprobs=logprobs, finish_reason="stop", weight_version=0)


def events(written: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in written.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def chat_text(event: Any) -> tuple[str, str]:
    delta = event["choices"][0]["delta"]
    return delta.get("reasoning_content", ""), delta.get("content", "")


def completions_text(event: Any) -> tuple[str, str]:
    return "", event["choices"][0]["text"]


def messages_text(event: Any) -> tuple[str, str]:
    delta = event.get("delta", {})
    return delta.get("thinking", ""), delta.get("text", "")


def generate_text(event: Any) -> tuple[str, str]:
    parts = event["candidates"][0]["content"]["parts"]
    reasoning, words = ([p["text"] for p in parts if "text" in p and ("thought" in p) is is_] for is_ in (True, False))
    return "".join(reasoning), "".join(words)


def responses_text(event: Any) -> tuple[str, str]:
    thinks, says = (event["type"] == f"response.{kind}_text.delta" for kind in ("reasoning", "output"))
    return event["delta"] if thinks else "", event["delta"] if says else ""


CHATS: list[tuple[Api, Callable[[Any], tuple[str, str]]]] = [
    (ChatApi(), chat_text),
    (GenerateApi(), generate_text),
    (MessagesApi(), messages_text),
    (ResponsesApi(), responses_text),
]
PLAIN: list[tuple[Api, Callable[[Any], tuple[str, str]]]] = [(CompletionsApi(), completions_text)]


def pending(request: ModelRequest, renderer: TemplateRenderer, prompt: Any = (1,)) -> PendingResponse:
    response = PendingResponse(request, renderer)
    response.begin("ab0", 1, np.array(prompt, np.int32), 0)
    return response


def streamed(api: Api, request: ModelRequest, response: PendingResponse, choice: Choice) -> bytes:
    """All events of a response whose tokens arrive one by one."""
    looked: dict[int, int] = {}
    stream, written = api.stream(request, response), b""
    for token in choice.token_ids:
        response.add_tokens(0, np.array([token], np.int32))
        for index, final in response.read_final_text(looked).items():
            written += stream.add(index, final)
    response.finish([choice])
    return written + stream.end(response)


@given(
    said=st.lists(st.sampled_from(PIECES), max_size=12),
    decoding=st.sampled_from([lossy, fallback, cleaned]),
    thinks=st.booleans(),
    in_reasoning=st.booleans(),
    request=st.builds(
        ModelRequest,
        messages=st.just([{"role": "user", "content": "hi"}]),
        is_plain=st.booleans(),
        tools=st.sampled_from([(), TOOLS]),
        stop=st.sampled_from([(), ("STOP",), ("STOP", "T"), ("a\n", "\n{", "é")]),
        response_format=st.sampled_from([None, None, ResponseFormat("response_format", "{}")]),
        stream=st.just(True),
        sent=st.just({"generationConfig": {"thinkingConfig": {"includeThoughts": True}}}),
    ),
)
def test_deltas_together_are_the_whole_response(
    said: list[list[int]], decoding: Any, thinks: bool, in_reasoning: bool, request: ModelRequest
) -> None:
    renderer = renderer_of_bytes(decoding, thinks)
    prompt = np.array([1, THINK if in_reasoning else 1], np.int32)
    sampled = cut_at_texts(completion([token for piece in said for token in piece]), renderer.text, request.stop)
    choice = choice_of("c", "p", request, prompt, sampled, renderer)
    for api, text in PLAIN if request.is_plain else CHATS:
        written = streamed(api, request, pending(request, renderer, prompt), choice)
        deltas = [text(each) for each in events(written)]
        reasoning, words = ("".join(parts) for parts in zip(*deltas, strict=True))
        assert (reasoning, words) == (choice.reasoning, choice.content)


def grown(said: bytes, renderer: TemplateRenderer | None = None, **options: Any) -> list[str]:
    """The content that is final after each byte."""
    request = ModelRequest(messages=[], stream=True, **options)
    response, looked = pending(request, renderer or renderer_of_bytes()), dict[int, int]()
    found = []
    for byte in said:
        response.add_tokens(0, np.array([byte], np.int32))
        found += [each.content for each in response.read_final_text(looked).values()]
    return found


def test_text_that_may_begin_a_stop_string_waits() -> None:
    assert grown(b"aSTbST", stop=("STOP",)) == ["a", "a", "a", "aSTb", "aSTb", "aSTb"]


def test_json_that_may_be_a_call_waits() -> None:
    form = ResponseFormat("response_format", "{}")
    assert grown(b"{}", response_format=form, tools=TOOLS) == ["", ""]
    assert grown(b"{}", response_format=form) == ["{", "{}"]


def test_long_response_is_parsed_less_than_per_token() -> None:
    assert len(grown(b"a" * 1000)) < LOOKS * 6


@pytest.mark.parametrize("later", [FinalText(content="no"), FinalText(reasoning="so", content="yes")])
def test_stream_that_must_retract_text_is_an_error(later: FinalText) -> None:
    sent = SentText()
    assert sent.more(FinalText(content="yes")) == FinalText(content="yes")
    with pytest.raises(RefusedError):
        sent.more(later)
