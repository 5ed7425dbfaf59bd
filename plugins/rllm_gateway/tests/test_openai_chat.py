"""openai-python speaks to the gateway as to any server: chat completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from gateway_clients import openai_client as client_of
from gateway_world import CALL, World, assert_one_class

HI: Any = [{"role": "user", "content": "hi"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "look_up", "parameters": {"type": "object", "properties": {"word": {"type": "string"}}}},
    }
]


@pytest.fixture
def client(world: World) -> Iterator[openai.OpenAI]:
    with client_of(world) as client:
        yield client


def test_a_response(client: openai.OpenAI, world: World) -> None:
    completion = client.chat.completions.create(model="gpt", messages=HI)
    [choice] = completion.choices
    assert (choice.message.content, choice.finish_reason, choice.message.tool_calls) == ("hello", "stop", None)
    assert completion.model == "gpt"
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (len("<u>hi<a>"), len("hello$"))
    assert world.policy.calls[0].prompt == "<u>hi<a>"


def test_a_response_that_is_streamed(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(model="gpt", messages=HI, stream=True, stream_options=options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "hello"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == len("<u>hi<a>hello$")


def test_the_client_s_own_accumulation_of_a_stream(client: openai.OpenAI, world: World) -> None:
    world.policy.response = lambda prompt: f"wait{CALL}"
    with client.chat.completions.stream(model="gpt", messages=HI, tools=TOOLS) as stream:
        [choice] = stream.get_final_completion().choices
    assert choice.message.content == "wait"
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].function.arguments == '{"word": "proof"}'


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


def test_a_stop_text_ends_a_response_and_is_not_told(client: openai.OpenAI, world: World) -> None:
    world.policy.response = lambda prompt: "Thought: x\nObservation: y"
    [choice] = client.chat.completions.create(model="gpt", messages=HI, stop=["Observation:"]).choices
    assert (choice.message.content, choice.finish_reason) == ("Thought: x\n", "stop")
    assert bytes(world.policy.calls[0].completion.token_ids.tolist()) == b"Thought: x\nObservation:"


def test_a_response_that_is_cut_off(client: openai.OpenAI) -> None:
    [choice] = client.chat.completions.create(model="gpt", messages=HI, max_tokens=2).choices
    assert (choice.message.content, choice.finish_reason) == ("he", "length")


def test_the_session_s_most_tokens_win_over_more(world: World) -> None:
    with client_of(world, max_tokens=3) as client:
        client.chat.completions.create(model="gpt", messages=HI, max_completion_tokens=100)
    assert world.policy.calls[0].max_tokens == 3


def test_logprobs(client: openai.OpenAI) -> None:
    [choice] = client.chat.completions.create(model="gpt", messages=HI, logprobs=True).choices
    assert choice.logprobs is not None
    tokens = choice.logprobs.content or []
    assert [token.token for token in tokens] == [*"hello", ""]
    assert tokens[0].logprob == pytest.approx(-1.0)


def test_parts_of_text_are_one_text(client: openai.OpenAI, world: World) -> None:
    parts: Any = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": parts}])
    assert world.policy.calls[0].prompt == "<u>hi<a>"


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
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="gpt", messages=HI, **change)
    assert (caught.value.param, caught.value.code) == (param, "unsupported_parameter")


def test_a_session_may_ignore_and_count_it(world: World) -> None:
    session = world.open(unsupported="ignore")
    with openai.OpenAI(base_url=session.openai_url(), api_key=session.key) as client:
        client.chat.completions.create(model="gpt", messages=HI, tools=TOOLS, tool_choice="required")
    assert world.close(session).counters["ignored/tool_choice"] == 1


def test_what_the_run_decides_is_counted(world: World) -> None:
    session = world.open()
    with openai.OpenAI(base_url=session.openai_url(), api_key=session.key) as client:
        client.chat.completions.create(model="gpt", messages=HI, temperature=0.1, reasoning_effort="low")
    assert world.close(session).counters == {
        "overruled/model": 1,
        "overruled/temperature": 1,
        "ignored/reasoning_effort": 1,
    }


def test_a_prompt_without_room_is_said_as_openai_says_it(client: openai.OpenAI) -> None:
    long: Any = [{"role": "user", "content": "x" * 6000}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="gpt", messages=long)
    assert caught.value.code == "context_length_exceeded"


def test_the_models_there_are(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_after_the_last_call_no_other_is_answered(world: World) -> None:
    with client_of(world, max_calls=1) as client:
        client.chat.completions.create(model="gpt", messages=HI)
        with pytest.raises(openai.PermissionDeniedError):
            client.chat.completions.create(model="gpt", messages=HI)


def test_every_parameter_that_the_client_knows_has_one_class() -> None:
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

    from rllm_gateway.apis.chat import RULES

    assert_one_class(CompletionCreateParamsNonStreaming.__annotations__, RULES)
