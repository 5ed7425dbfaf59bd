"""Responses whose form the client decides, in the three APIs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gateway_clients import anthropic_client, openai_client, openai_of
from gateway_world import World
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from rllm_gateway.apis.structured import call_in, find_required_form

HI: Any = [{"role": "user", "content": "hi"}]
FORM = {"format": {"type": "json_schema", "schema": {"type": "object"}}}


class Part(BaseModel):
    word: str


class Answer(BaseModel):
    parts: list[Part]


def tool(name: str = "look_up") -> Any:
    return {"type": "function", "function": {"name": name, "parameters": Answer.model_json_schema()}}


WRITTEN = '{"parts": [{"word": "x"}]}'
CALL = '{"name": "look_up", "arguments": {"parts": []}}'


@pytest.fixture(autouse=True)
def _able(world: World) -> None:
    world.policy.options = frozenset(("json_schema", "top_logprobs"))


def test_parse_returns_the_users_model(world: World) -> None:
    world.policy.response = lambda prompt: WRITTEN
    with openai_client(world) as client:
        chat = client.chat.completions.parse(model="gpt", messages=HI, response_format=Answer)
        response = client.responses.parse(model="gpt", input="hi", text_format=Answer)
    assert chat.choices[0].message.parsed == response.output_parsed == Answer(parts=[Part(word="x")])
    assert [schema["properties"].keys() for schema in world.policy.schemas] == [{"parts"}] * 2


def test_json_object_and_output_format_are_schemas(world: World) -> None:
    with openai_client(world) as client:
        client.chat.completions.create(model="gpt", messages=HI, response_format={"type": "json_object"})
    with anthropic_client(world) as client:
        client.messages.create(model="m", max_tokens=9, messages=HI, extra_body={"output_config": FORM})
        # LiteLLM sends the parameter of the beta.
        client.messages.create(model="m", max_tokens=9, messages=HI, extra_body={"output_format": FORM["format"]})
    assert world.policy.schemas == [{"type": "object"}] * 3


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look_up"}}], ids=str)
def test_forced_tool_is_called_in_chat_and_continued(world: World, choice: Any) -> None:
    world.policy.response = lambda prompt: CALL
    session = world.open()
    with openai_of(session) as client:
        ask: Any = {"model": "m", "tools": [tool()]}
        [done] = client.chat.completions.create(messages=HI, tool_choice=choice, **ask).choices
        assert (done.finish_reason, done.message.content) == ("tool_calls", "")
        [call] = done.message.tool_calls or ()
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("look_up", {"parts": []})
        result = {"role": "tool", "tool_call_id": call.id, "content": "found"}
        later: Any = [*HI, done.message.model_dump(exclude_none=True), result]
        client.chat.completions.create(messages=later, **ask)
    one, two = world.close(session).calls
    assert two.parent == one.id


def test_forced_tool_is_called_in_messages(world: World) -> None:
    world.policy.response = lambda prompt: CALL
    tools: Any = [{"name": "look_up", "input_schema": Answer.model_json_schema()}]
    choice: Any = {"type": "tool", "name": "look_up"}
    with anthropic_client(world) as client:
        done = client.messages.create(model="m", max_tokens=90, messages=HI, tools=tools, tool_choice=choice)
    assert [block.type for block in done.content] == ["tool_use"]
    assert done.stop_reason == "tool_use"


def test_forced_tool_that_is_not_offered_is_refused(world: World) -> None:
    import openai

    choice: Any = {"type": "function", "function": {"name": "other"}}
    with openai_client(world) as client, pytest.raises(openai.BadRequestError, match="other"):
        client.chat.completions.create(model="m", messages=HI, tools=[tool()], tool_choice=choice)


def test_top_logprobs_are_named_in_chat(world: World) -> None:
    with openai_client(world) as client:
        [choice] = client.chat.completions.create(model="gpt", messages=HI, logprobs=True, top_logprobs=2).choices
    assert choice.logprobs is not None
    assert [len(each.top_logprobs) for each in choice.logprobs.content or ()] == [2] * len("hello$")


@pytest.mark.parametrize(
    ("options", "ignored"),
    [
        ({"json_schema"}, {"top_logprobs"}),
        ({"top_logprobs"}, {"response_format", "output_config.format"}),
        (set(), {"response_format", "top_logprobs", "output_config.format"}),
    ],
    ids=["schemas", "top_logprobs", "neither"],
)
def test_session_ignores_only_unsupported_parts(world: World, options: set[str], ignored: set[str]) -> None:
    world.policy.options = frozenset(options)
    session = world.open(unsupported="ignore")
    with openai_of(session) as client:
        client.chat.completions.create(
            model="gpt", messages=HI, response_format={"type": "json_object"}, logprobs=True, top_logprobs=1
        )
        client.post(
            "/messages", body={"model": "m", "max_tokens": 9, "messages": HI, "output_config": FORM}, cast_to=object
        )
    assert len(world.policy.schemas) == 2 * ("json_schema" in options)
    found = {name for name in world.close(session).counters if name.startswith("ignored/")}
    assert found == {f"ignored/{name}" for name in ignored}


def test_schema_with_tools_allows_answer_or_call() -> None:
    form = find_required_form("response_format", Answer.model_json_schema(), [tool(), tool("other")], False, None)
    assert form is not None
    valid = Draft202012Validator(json.loads(form.schema)).is_valid

    assert valid(json.loads(WRITTEN))
    assert valid(json.loads(CALL))
    assert not valid({"name": "third", "arguments": {"parts": []}})
    assert not valid({"name": "look_up", "arguments": {"parts": [{"word": 3}]}})


@pytest.mark.parametrize("text", ["", "3", "[]", WRITTEN, '{"name": "third", "arguments": {}}', CALL[:-1]])
def test_response_without_a_call_stays_text(text: str) -> None:
    assert call_in(text, [tool()]) == []
