"""anthropic-python speaks to the gateway as to any server: messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from gateway_clients import anthropic_client
from gateway_world import CALL, World

if TYPE_CHECKING:
    import anthropic

HI: Any = [{"role": "user", "content": "hi"}]
TOOLS: Any = [
    {"name": "look_up", "input_schema": {"type": "object", "properties": {"word": {"type": "string"}}}},
]
MODEL = "claude"


@pytest.fixture
def client(world: World) -> Iterator[anthropic.Anthropic]:
    with anthropic_client(world) as client:
        yield client


def test_a_response(client: anthropic.Anthropic, world: World) -> None:
    message = client.messages.create(model=MODEL, max_tokens=100, messages=HI, system="be kind")
    assert [block.model_dump(exclude_none=True) for block in message.content] == [{"type": "text", "text": "hello"}]
    assert message.stop_reason == "end_turn"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (len("<s>be kind<u>hi<a>"), len("hello$"))
    assert world.policy.calls[0].prompt == "<s>be kind<u>hi<a>"


def test_streamed_tool_calls_are_stored_token_by_token(client: anthropic.Anthropic, world: World) -> None:
    said = f"wait{CALL}{CALL}"
    world.policy.response = lambda prompt: said
    with client.messages.stream(model=MODEL, max_tokens=400, messages=HI, tools=TOOLS) as stream:
        message = stream.get_final_message()
    text, *calls = message.content
    assert text.type == "text"
    assert text.text == "wait"
    assert [(call.name, call.input) for call in calls if call.type == "tool_use"] == [
        ("look_up", {"word": "proof"})
    ] * 2
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens == len(f"{said}$")
    [sampled] = world.policy.calls
    [row] = world.store.calls(sampled.session)
    assert row.response_ids.tolist() == sampled.completion.token_ids.tolist() == [*map(ord, f"{said}$")]


def test_a_call_of_a_tool_and_its_result(client: anthropic.Anthropic, world: World) -> None:
    world.policy.response = lambda prompt: "done" if "<t>" in prompt else CALL
    first = client.messages.create(model=MODEL, max_tokens=100, messages=HI, tools=TOOLS)
    [call] = first.content
    assert call.type == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "a proof"}]}
    said: Any = [*HI, first.to_param(), {"role": "user", "content": [result]}]
    second = client.messages.create(model=MODEL, max_tokens=100, messages=said, tools=TOOLS)
    assert second.content[0].type == "text"
    assert world.policy.calls[1].prompt.endswith(f"<u>hi<a>{CALL}$<t>a proof<a>")
    assert second.usage.cache_read_input_tokens == len(world.policy.calls[0].prompt) + len(f"{CALL}$")


def test_limits_and_lengths(client: anthropic.Anthropic, world: World) -> None:
    world.policy.response = lambda prompt: "one END two"
    message = client.messages.create(model=MODEL, max_tokens=100, messages=HI, stop_sequences=["END"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")
    assert message.content[0].model_dump()["text"] == "one "
    assert client.messages.create(model=MODEL, max_tokens=2, messages=HI).stop_reason == "max_tokens"
    assert client.messages.count_tokens(model=MODEL, messages=HI).input_tokens == len("<u>hi<a>")


def test_refusals_have_the_form_of_anthropic(client: anthropic.Anthropic, world: World) -> None:
    import anthropic

    body: Any
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model=MODEL, max_tokens=9, messages=HI, tools=TOOLS, tool_choice={"type": "any"})
    body = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.beta.messages.create(model=MODEL, max_tokens=9, messages=HI, thread={"type": "create"})
    body = caught.value.body
    assert body["error"]["details"] == {"error_code": "thread_unsupported_request"}
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="wrong").messages.create(model=MODEL, max_tokens=9, messages=HI)


@pytest.mark.parametrize("unsupported", ["refuse", "ignore"])
def test_tools_that_the_client_runs_see_the_whole_conversation(unsupported: str, world: World) -> None:
    """The client requests a stored conversation, and sends all messages if the server has none."""
    import anthropic

    @anthropic.beta_tool
    def look_up(word: str) -> str:
        """Look up a word."""
        return f"a {word}"

    world.policy.response = lambda prompt: "done" if "<t>" in prompt else CALL
    with anthropic_client(world, unsupported=unsupported) as client:
        runner = client.beta.messages.tool_runner(model=MODEL, max_tokens=100, messages=HI, tools=[look_up])
        [block] = runner.until_done().content
    assert block.model_dump()["text"] == "done"
    first, second = world.policy.calls
    assert second.prompt == f"{first.prompt}{CALL}$<t>a proof<a>"
