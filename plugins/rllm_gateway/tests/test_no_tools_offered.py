"""A model that writes a call although the client offered no tools: the text is the answer, in every API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from gateway_world import CALL, World

HI: Any = {"role": "user", "content": "hi"}
AND: Any = {"role": "user", "content": "and"}
SAID = f"wait {CALL} \n"
FUNCTION = {"name": "look_up", "parameters": {"type": "object", "properties": {"word": {"type": "string"}}}}
APIS: dict[str, tuple[str, dict[str, Any], Callable[[Any], Any]]] = {
    "chat/completions": (
        "messages",
        {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "none"},
        lambda answer: [answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]],
    ),
    "responses": (
        "input",
        {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "none"},
        lambda answer: [*(item["content"][0]["text"] for item in answer["output"]), answer["status"]],
    ),
    "messages": (
        "messages",
        {"tools": [{"name": "look_up", "input_schema": FUNCTION["parameters"]}], "tool_choice": {"type": "none"}},
        lambda answer: [*(block["text"] for block in answer["content"]), answer["stop_reason"]],
    ),
}
"""API -> the key of its messages, an offer that forbids calls, and all parts of its answer."""


@pytest.mark.parametrize("offered", [False, True], ids=["no tools", "tool_choice none"])
@pytest.mark.parametrize("api", APIS)
def test_call_without_offered_tools_stays_text(world: World, api: str, offered: bool) -> None:
    key, offer, parts_of = APIS[api]
    world.policy.response = lambda prompt: SAID
    session = world.open()
    with httpx.Client(base_url=session.openai_url(), headers={"x-api-key": session.key}) as client:
        for messages in ([HI], [HI, {"role": "assistant", "content": SAID}, AND]):
            body = {"model": "m", "max_tokens" if key == "messages" else "max_output_tokens": 99, key: messages}
            answer = client.post(api, json=body | (offer if offered else {}))
            assert answer.status_code == 200, answer.text
            text, ending = parts_of(answer.json())
            assert text == SAID
            assert ending in ("stop", "completed", "end_turn")
    first, second = world.close(session).calls
    assert second.parent == first.id
    assert world.policy.calls[1].prompt == f"<u>hi<a>{SAID}$<u>and<a>"
