"""openai-python speaks to the gateway as to any server: responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from gateway_clients import openai_client as client_of
from gateway_world import CALL, World

if TYPE_CHECKING:
    import openai

PARAMETERS = {"type": "object", "properties": {"word": {"type": "string"}}}
TOOLS: Any = [{"type": "function", "name": "look_up", "parameters": PARAMETERS, "strict": True}]


@pytest.fixture
def client(world: World) -> Iterator[openai.OpenAI]:
    with client_of(world) as client:
        yield client


def test_a_response(client: openai.OpenAI, world: World) -> None:
    logprobs: Any = ["message.output_text.logprobs"]
    response = client.responses.create(model="gpt", instructions="be kind", input="hi", include=logprobs)
    assert (response.output_text, response.status) == ("hello", "completed")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (len("<s>be kind<u>hi<a>"), len("hello$"))
    assert world.policy.calls[0].prompt == "<s>be kind<u>hi<a>"
    [message] = response.output
    assert message.type == "message"
    [part] = message.content
    assert part.type == "output_text"
    assert [token.token for token in part.logprobs or []] == [*"hello", ""]


def test_streamed_tool_calls_are_stored_token_by_token(client: openai.OpenAI, world: World) -> None:
    world.policy.response = lambda prompt: f"wait{CALL}{CALL}"
    with client.responses.stream(model="gpt", input="hi", tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        response = stream.get_final_response()
    assert response.output_text == "wait"
    assert [item.type for item in response.output] == ["message", "function_call", "function_call"]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert {"response.output_text.delta", "response.function_call_arguments.done"} < {*kinds}
    [sampled] = world.policy.calls
    [row] = world.store.calls(sampled.session)
    assert row.response_ids.tolist() == sampled.completion.token_ids.tolist() == [*map(ord, f"wait{CALL}{CALL}$")]


def test_a_call_of_a_tool_and_its_result(client: openai.OpenAI, world: World) -> None:
    world.policy.response = lambda prompt: "done" if "<t>" in prompt else f"wait{CALL}"
    said: Any = [{"role": "user", "content": "hi"}]
    first = client.responses.create(model="gpt", input=said, tools=TOOLS)
    call = first.output[1]
    assert call.type == "function_call"
    said += [item.model_dump(exclude_none=True) for item in first.output]
    said.append({"type": "function_call_output", "call_id": call.call_id, "output": "a proof"})
    assert client.responses.create(model="gpt", input=said, tools=TOOLS).output_text == "done"
    assert world.policy.calls[1].prompt.endswith(f"<u>hi<a>wait{CALL}$<t>a proof<a>")


def test_a_response_that_is_cut_off(client: openai.OpenAI) -> None:
    response = client.responses.create(model="gpt", input="hi", max_output_tokens=2)
    assert (response.status, response.output_text) == ("incomplete", "he")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize(
    ("unsupported", "param", "change"),
    [
        ("refuse", "background", {"background": True}),
        ("refuse", "text.format", {"text": {"format": {"type": "json_object"}}}),
        ("refuse", "text.format.type", {"text": {"format": {"type": "grammar"}}}),
        ("refuse", "tools[0].type", {"tools": [{"type": "web_search"}]}),
        # No session keeps a conversation.
        ("ignore", "previous_response_id", {"previous_response_id": "resp_1"}),
        ("refuse", "conversation", {"conversation": "conv_1"}),
        ("ignore", "conversation", {"conversation": "conv_1"}),
        ("ignore", "prompt", {"prompt": {"id": "pmpt_1"}}),
        ("ignore", "input[0].type", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
    ],
)
def test_what_nothing_acts_on_is_refused_by_name(world: World, unsupported: str, param: str, change: Any) -> None:
    import openai

    with client_of(world, unsupported=unsupported) as client, pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**{"model": "gpt", "input": "hi", **change})
    assert caught.value.param == param
    assert caught.value.code == "unsupported_parameter" or unsupported == "refuse"
    assert not world.policy.calls
