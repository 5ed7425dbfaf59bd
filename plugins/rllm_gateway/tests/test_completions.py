"""OpenAI's older completions API, and paths that clients of other APIs use."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import Request, urlopen

import openai
import pytest
from gateway_clients import anthropic_client, openai_client
from gateway_world import World


@pytest.mark.parametrize("prompt", ["ab", ["ab"], [97, 98], [[97, 98]]], ids=str)
def test_prompt_is_continued_as_written(world: World, prompt: Any) -> None:
    with openai_client(world) as client:
        done = client.completions.create(model="gpt", prompt=prompt, logprobs=0)
    assert world.policy.calls[0].prompt == "ab"
    [choice] = done.choices
    assert (choice.text, choice.finish_reason) == ("hello", "stop")
    assert choice.logprobs is not None
    assert choice.logprobs.text_offset == [0, 1, 2, 3, 4, 5]
    assert done.usage is not None
    assert done.usage.total_tokens == 8


def test_streamed_completion_has_text_and_usage(world: World) -> None:
    with openai_client(world) as client:
        stream = client.completions.create(
            model="gpt", prompt="ab", n=2, stop="l", stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
    assert [choice.text for chunk in chunks for choice in chunk.choices] == ["he", "he"]
    assert chunks[-1].usage is not None


def test_likeliest_tokens_are_named(world: World) -> None:
    world.policy.options = frozenset(("top_logprobs",))
    with openai_client(world) as client:
        [choice] = client.completions.create(model="gpt", prompt="ab", logprobs=1).choices
    assert choice.logprobs is not None
    assert (choice.logprobs.top_logprobs or [])[0] == {"h": -2.0}


@pytest.mark.parametrize(
    ("param", "change"),
    [("echo", {"echo": True}), ("best_of", {"best_of": 2}), ("suffix", {"suffix": "x"}), ("prompt", {"prompt": []})],
)
def test_other_wishes_are_refused_by_name(world: World, param: str, change: Any) -> None:
    with openai_client(world) as client, pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**({"model": "gpt", "prompt": "ab"} | change))
    assert caught.value.param == param


def test_model_is_found_under_any_name(world: World) -> None:
    with openai_client(world) as client:
        assert client.models.retrieve("org/gpt-4").id == "org/gpt-4"
        assert [model.id for model in client.models.list()] == ["tiny"]
    with anthropic_client(world) as client:
        assert client.models.retrieve("claude").display_name == "claude"


@pytest.mark.parametrize("path", ["messages", "messages/count_tokens", "v1/messages"])
def test_messages_are_answered_without_v1(world: World, path: str) -> None:
    session = world.open()
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    headers = {"x-api-key": session.key, "content-type": "application/json"}
    request = Request(f"{session.anthropic_url()}/{path}", json.dumps(body).encode(), headers)
    with urlopen(request) as response:
        assert json.load(response)
