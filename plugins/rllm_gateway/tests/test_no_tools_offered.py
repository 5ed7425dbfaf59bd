"""A model that writes a call although the client offered no tools: the text is the answer, in every API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest
from gateway_world import CALL, World

HI: Any = {"role": "user", "content": "hi"}
AND: Any = {"role": "user", "content": "and"}
SAID = f"wait {CALL} \n"
FUNCTION = {"name": "look_up", "parameters": {"type": "object", "properties": {"word": {"type": "string"}}}}


def chat(session: Any, messages: list[Any], streamed: bool, offered: bool) -> tuple[str | None, str | None]:
    options: Any = {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "none"} if offered else {}
    with openai.OpenAI(base_url=session.openai_url(), api_key=session.key) as client:
        if streamed:
            with client.chat.completions.stream(model="m", messages=messages, **options) as stream:
                choice: Any = stream.get_final_completion().choices[0]
        else:
            choice = client.chat.completions.create(model="m", messages=messages, **options).choices[0]
    assert not choice.message.tool_calls
    return choice.message.content, choice.finish_reason


def responses(session: Any, messages: list[Any], streamed: bool, offered: bool) -> tuple[str | None, str | None]:
    options: Any = {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "none"} if offered else {}
    with openai.OpenAI(base_url=session.openai_url(), api_key=session.key) as client:
        if streamed:
            with client.responses.stream(model="m", input=messages, **options) as stream:
                response: Any = stream.get_final_response()
        else:
            response = client.responses.create(model="m", input=messages, **options)
    assert [item.type for item in response.output] == ["message"]
    return response.output_text, {"completed": "stop"}.get(response.status)


def anthropic_messages(
    session: Any, messages: list[Any], streamed: bool, offered: bool
) -> tuple[str | None, str | None]:
    tools = [{"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}]
    options: Any = {"tools": tools, "tool_choice": {"type": "none"}} if offered else {}
    with anthropic.Anthropic(base_url=session.anthropic_url(), api_key=session.key) as client:
        if streamed:
            with client.messages.stream(model="m", max_tokens=99, messages=messages, **options) as stream:
                message: Any = stream.get_final_message()
        else:
            message = client.messages.create(model="m", max_tokens=99, messages=messages, **options)
    assert [block.type for block in message.content] == ["text"]
    return message.content[0].text, {"end_turn": "stop"}.get(message.stop_reason)


@pytest.mark.long
@pytest.mark.parametrize("offered", [False, True], ids=["no tools", "tool_choice none"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("ask", [chat, responses, anthropic_messages])
def test_call_without_offered_tools_stays_text(
    world: World, ask: Callable[..., tuple[str, str]], streamed: bool, offered: bool
) -> None:
    world.policy.response = lambda prompt: SAID
    session = world.open()
    assert ask(session, [HI], streamed, offered) == (SAID, "stop")
    ask(session, [HI, {"role": "assistant", "content": SAID}, AND], streamed, offered)
    first, second = world.close(session).calls
    assert second.parent == first.id
    assert world.policy.calls[1].prompt == f"<u>hi<a>{SAID}$<u>and<a>"
