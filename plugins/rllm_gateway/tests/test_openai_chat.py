"""openai-python speaks to the gateway as to any server: chat completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from gateway_clients import openai_client as client_of, openai_of
from gateway_world import CALL, World

if TYPE_CHECKING:
    import openai

HI: Any = [{"role": "user", "content": "hi"}]
FUNCTION = {"name": "look_up", "parameters": {"type": "object", "properties": {"word": {"type": "string"}}}}
TOOLS: Any = [{"type": "function", "function": FUNCTION}]


@pytest.fixture
def client(world: World) -> Iterator[openai.OpenAI]:
    with client_of(world) as client:
        yield client


def test_a_response(client: openai.OpenAI, world: World) -> None:
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]
    completion = client.chat.completions.create(model="gpt", messages=parts, logprobs=True)
    [choice] = completion.choices
    assert (choice.message.content, choice.finish_reason, choice.message.tool_calls) == ("hello", "stop", None)
    assert completion.model == "gpt"
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (len("<u>hi<a>"), len("hello$"))
    assert world.policy.calls[0].prompt == "<u>hi<a>"
    assert choice.logprobs is not None
    tokens = choice.logprobs.content or []
    assert [token.token for token in tokens] == [*"hello", ""]
    assert [token.logprob for token in tokens] == world.policy.calls[0].completion.logprobs.tolist()


def test_a_response_that_is_streamed(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(model="gpt", messages=HI, stream=True, stream_options=options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "hello"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == len("<u>hi<a>hello$")


def test_streamed_tool_calls_are_stored_token_by_token(client: openai.OpenAI, world: World) -> None:
    said = f"«é» wait{CALL}{CALL}"
    world.policy.response = lambda prompt: said
    with client.chat.completions.stream(model="gpt", messages=HI, tools=TOOLS) as stream:
        [choice] = stream.get_final_completion().choices
    assert (choice.message.content, choice.finish_reason) == ("«é» wait", "tool_calls")
    calls = choice.message.tool_calls or []
    assert [call.function.arguments for call in calls] == ['{"word": "proof"}'] * 2
    [sampled] = world.policy.calls
    [row] = world.store.calls(sampled.session)
    assert row.response_ids.tolist() == sampled.completion.token_ids.tolist() == [*map(ord, said + "$")]
    assert row.logprobs.tolist() == sampled.completion.logprobs.tolist()


def test_a_call_of_a_tool_and_its_result(client: openai.OpenAI, world: World) -> None:
    world.policy.response = lambda prompt: "done" if "<t>" in prompt else CALL
    first = client.chat.completions.create(model="gpt", messages=HI, tools=TOOLS).choices[0]
    assert first.finish_reason == "tool_calls"
    [call] = first.message.tool_calls or []
    said: Any = [*HI, first.message, {"role": "tool", "tool_call_id": call.id, "content": "a proof"}]
    assert client.chat.completions.create(model="gpt", messages=said, tools=TOOLS).choices[0].message.content == "done"
    assert world.policy.calls[1].prompt.endswith(f"<u>hi<a>{CALL}$<t>a proof<a>")


def test_n_responses_are_n_calls(client: openai.OpenAI, world: World) -> None:
    responses = iter(("one", "two"))
    world.policy.response = lambda prompt: next(responses)
    choices = client.chat.completions.create(model="gpt", messages=HI, n=2).choices
    assert [(choice.index, choice.message.content) for choice in choices] == [(0, "one"), (1, "two")]
    assert len({call.call for call in world.policy.calls}) == 2
    assert len({call.branch for call in world.policy.calls}) == 2


def test_stop_text_and_most_tokens_end_a_response(client: openai.OpenAI, world: World) -> None:
    world.policy.response = lambda prompt: "Thought: x\nObservation: y"
    [choice] = client.chat.completions.create(model="gpt", messages=HI, stop=["Observation:"]).choices
    assert (choice.message.content, choice.finish_reason) == ("Thought: x\n", "stop")
    assert bytes(world.policy.calls[0].completion.token_ids.tolist()) == b"Thought: x\nObservation:"
    [choice] = client.chat.completions.create(model="gpt", messages=HI, max_tokens=2).choices
    assert (choice.message.content, choice.finish_reason) == ("Th", "length")


@pytest.mark.parametrize(
    ("param", "change"),
    [
        ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}}),
        ("logit_bias", {"logit_bias": {"5": 1}}),
        ("tool_choice", {"tools": TOOLS, "tool_choice": "required"}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 3}),
        ("reticulate", {"extra_body": {"reticulate": 1}}),
    ],
)
def test_what_nothing_acts_on_is_refused_by_name(client: openai.OpenAI, param: str, change: Any) -> None:
    import openai

    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="gpt", messages=HI, **change)
    assert (caught.value.param, caught.value.code) == (param, "unsupported_parameter")


def test_ignored_and_overruled_parameters_are_counted(world: World) -> None:
    session = world.open(unsupported="ignore", max_tokens=3)
    changed: Any = {"temperature": 0.1, "reasoning_effort": "low", "max_completion_tokens": 100}
    with openai_of(session) as client:
        client.chat.completions.create(model="gpt", messages=HI, tools=TOOLS, tool_choice="required", **changed)
    assert world.policy.calls[0].max_tokens == 3
    assert world.close(session).counters == {
        "overruled/model": 1,
        "overruled/temperature": 1,
        "ignored/reasoning_effort": 1,
        "ignored/tool_choice": 1,
    }


def test_too_long_prompt_and_last_call_are_refused_as_by_openai(world: World) -> None:
    import openai

    with client_of(world, max_calls=1) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "x" * 6000}])
        assert caught.value.code == "context_length_exceeded"
        client.chat.completions.create(model="gpt", messages=HI)
        with pytest.raises(openai.PermissionDeniedError):
            client.chat.completions.create(model="gpt", messages=HI)
