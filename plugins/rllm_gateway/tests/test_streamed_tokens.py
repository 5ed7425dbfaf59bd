"""A stream loses nothing: with calls of tools in it, what is stored is what the engine sampled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from gateway_clients import anthropic_client, openai_client
from gateway_world import CALL, World

HI: Any = [{"role": "user", "content": "hi"}]
SCHEMA: Any = {"type": "object", "properties": {"word": {"type": "string"}}}
TOOL: Any = {"name": "look_up", "parameters": SCHEMA}
SAID = f"«{'é' * 40}» wait{CALL}{CALL}"
"""Text, and two calls of a tool."""


def chat(world: World) -> int:
    """Streams a response. Returns how many calls of tools the client saw."""
    tools: Any = [{"type": "function", "function": {**TOOL, "strict": True}}]
    with openai_client(world) as client, client.chat.completions.stream(model="m", messages=HI, tools=tools) as stream:
        stream.until_done()
        return len(stream.get_final_completion().choices[0].message.tool_calls or ())


def responses(world: World) -> int:
    tools: Any = [{"type": "function", **TOOL, "strict": True}]
    with openai_client(world) as client, client.responses.stream(model="m", input=HI, tools=tools) as stream:
        stream.until_done()
        return sum(each.type == "function_call" for each in stream.get_final_response().output)


def messages(world: World) -> int:
    tools: Any = [{"name": "look_up", "input_schema": SCHEMA}]
    with (
        anthropic_client(world) as client,
        client.messages.stream(model="m", max_tokens=400, messages=HI, tools=tools) as stream,
    ):
        return sum(block.type == "tool_use" for block in stream.get_final_message().content)


@pytest.mark.parametrize("streams", [chat, responses, messages])
def test_a_streamed_response_with_calls_of_tools_is_stored_token_by_token(
    streams: Callable[[World], int], world: World
) -> None:
    world.policy.response = lambda prompt: SAID
    assert streams(world) == 2
    (sampled,) = world.policy.calls
    (row,) = world.store.calls(sampled.session)
    assert row.response_ids.tolist() == sampled.completion.token_ids.tolist() == [*map(ord, SAID + "$")]
    assert row.logprobs.tolist() == sampled.completion.logprobs.tolist()
