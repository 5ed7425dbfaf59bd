"""Responses whose form the client decides, in the three APIs."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest
from gateway_clients import anthropic_client, openai_client
from gateway_world import World
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from rllm_gateway.structured import call_in, find_required_form

HI: Any = [{"role": "user", "content": "hi"}]


class Part(BaseModel):
    word: str


class Answer(BaseModel):
    parts: list[Part]


def tool(name: str = "look_up", model: type[BaseModel] = Answer) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": model.model_json_schema()}}


WRITTEN = '{"parts": [{"word": "x"}]}'
CALL = '{"name": "look_up", "arguments": {"parts": []}}'


@pytest.fixture(autouse=True)
def _able(world: World) -> None:
    world.policy.options = frozenset(("json_schema", "top_logprobs"))


def test_chat_parse_returns_the_users_model(world: World) -> None:
    world.policy.response = lambda prompt: WRITTEN
    with openai_client(world) as client:
        done = client.chat.completions.parse(model="gpt", messages=HI, response_format=Answer)
    assert done.choices[0].message.parsed == Answer(parts=[Part(word="x")])
    assert world.policy.schemas[0]["properties"].keys() == {"parts"}


def test_chat_json_object_asks_for_any_object(world: World) -> None:
    with openai_client(world) as client:
        client.chat.completions.create(model="gpt", messages=HI, response_format={"type": "json_object"})
    assert world.policy.schemas == [{"type": "object"}]


def test_responses_parse_returns_the_users_model(world: World) -> None:
    world.policy.response = lambda prompt: WRITTEN
    with openai_client(world) as client:
        done = client.responses.parse(model="gpt", input="hi", text_format=Answer)
    assert done.output_parsed == Answer(parts=[Part(word="x")])


def test_messages_output_format_is_the_schema(world: World) -> None:
    form: Any = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    with anthropic_client(world) as client:
        client.messages.create(model="m", max_tokens=9, messages=HI, output_config=form)
    assert world.policy.schemas == [{"type": "object"}]


def test_messages_beta_output_format_is_the_schema(world: World) -> None:
    """LiteLLM sends the parameter of the beta, which clients replaced by ``output_config.format``."""
    form = {"output_format": {"type": "json_schema", "schema": {"type": "object"}}}
    with anthropic_client(world) as client:
        client.messages.create(model="m", max_tokens=9, messages=HI, extra_body=form)
    assert world.policy.schemas == [{"type": "object"}]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look_up"}}], ids=str)
def test_forced_tool_is_called_in_chat(world: World, choice: Any) -> None:
    world.policy.response = lambda prompt: CALL
    with openai_client(world) as client:
        [done] = client.chat.completions.create(model="m", messages=HI, tools=[tool()], tool_choice=choice).choices
    assert (done.finish_reason, done.message.content) == ("tool_calls", "")
    [call] = done.message.tool_calls or ()
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("look_up", {"parts": []})


def test_forced_tool_is_called_in_messages(world: World) -> None:
    world.policy.response = lambda prompt: CALL
    tools: Any = [{"name": "look_up", "input_schema": Answer.model_json_schema()}]
    choice: Any = {"type": "tool", "name": "look_up"}
    with anthropic_client(world) as client:
        done = client.messages.create(model="m", max_tokens=90, messages=HI, tools=tools, tool_choice=choice)
    assert [block.type for block in done.content] == ["tool_use"]
    assert done.stop_reason == "tool_use"


def test_conversation_after_a_forced_call_continues_it(world: World) -> None:
    world.policy.response = lambda prompt: CALL
    session = world.open()
    with openai.OpenAI(base_url=session.openai_url(), api_key=session.key) as client:
        ask: Any = {"model": "m", "tools": [tool()]}
        first = client.chat.completions.create(messages=HI, tool_choice="required", **ask).choices[0].message
        result = {"role": "tool", "tool_call_id": (first.tool_calls or [])[0].id, "content": "found"}
        later: Any = [*HI, first.model_dump(exclude_none=True), result]
        client.chat.completions.create(messages=later, **ask)
    one, two = world.close(session).calls
    assert two.parent == one.id


def test_forced_tool_that_is_not_offered_is_refused(world: World) -> None:
    choice: Any = {"type": "function", "function": {"name": "other"}}
    with openai_client(world) as client, pytest.raises(openai.BadRequestError, match="other"):
        client.chat.completions.create(model="m", messages=HI, tools=[tool()], tool_choice=choice)


def test_top_logprobs_are_named_in_chat(world: World) -> None:
    with openai_client(world) as client:
        [choice] = client.chat.completions.create(model="gpt", messages=HI, logprobs=True, top_logprobs=2).choices
    assert choice.logprobs is not None
    assert [len(each.top_logprobs) for each in choice.logprobs.content or ()] == [2] * len("hello$")


@pytest.mark.parametrize("unable", ["response_format", "top_logprobs"])
def test_engine_without_it_names_the_option(world: World, unable: str) -> None:
    world.policy.options = frozenset()
    changes: Any = {
        "response_format": {"response_format": {"type": "json_object"}},
        "top_logprobs": {"logprobs": True, "top_logprobs": 1},
    }[unable]
    with openai_client(world) as client, pytest.raises(openai.BadRequestError, match="unsupported=ignore") as caught:
        client.chat.completions.create(model="gpt", messages=HI, **changes)
    assert (caught.value.param, caught.value.code) == (unable, "unsupported_parameter")


def test_session_that_ignores_samples_without_the_schema(world: World) -> None:
    world.policy.options = frozenset()
    session = world.open(unsupported="ignore")
    with anthropic.Anthropic(base_url=session.anthropic_url(), api_key=session.key) as client:
        form: Any = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
        client.messages.create(model="m", max_tokens=9, messages=HI, output_config=form)
    assert world.close(session).counters["ignored/output_config.format"] == 1


@pytest.mark.parametrize(
    ("options", "ignored"),
    [
        ({"json_schema"}, {"top_logprobs"}),
        ({"top_logprobs"}, {"response_format"}),
        (set(), {"response_format", "top_logprobs"}),
    ],
    ids=["schemas", "top_logprobs", "neither"],
)
def test_session_ignores_only_unsupported_parts(world: World, options: set[str], ignored: set[str]) -> None:
    world.policy.options = frozenset(options)
    session = world.open(unsupported="ignore")
    with openai.OpenAI(base_url=session.openai_url(), api_key=session.key) as client:
        client.chat.completions.create(
            model="gpt", messages=HI, response_format={"type": "json_object"}, logprobs=True, top_logprobs=1
        )
    assert len(world.policy.schemas) == ("json_schema" in options)
    found = {name for name in world.close(session).counters if name.startswith("ignored/")}
    assert found == {f"ignored/{name}" for name in ignored}


def test_schema_and_tools_allow_the_answer_or_a_call() -> None:
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
