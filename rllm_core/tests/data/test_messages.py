"""Chat messages as JSON data."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rllm_core.data.messages import MalformedToolCall, Response, ToolCall, read_text

PARTS = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "b"}]
PICTURE = [{"type": "image", "text": None}, {"type": "text", "text": "a"}]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "hi"}, "hi"),
        ({"content": None}, ""),
        ({"content": PARTS}, "ab"),
        ({"content": PICTURE}, "a"),
        ({}, ""),
    ],
)
def test_message_text_joins_its_text_parts(message: Any, text: str) -> None:
    assert read_text({"role": "user"} | message) == text


def test_a_plain_response_is_a_plain_message() -> None:
    assert Response(text="hi", content="hi").message == {"role": "assistant", "content": "hi"}


def test_text_of_unreadable_call_stays_in_the_message() -> None:
    cut = MalformedToolCall(text='<tool_call>{"name": "add"', problem="it is cut off")
    message = Response(text="…", content="Let me see.", malformed_calls=(cut,)).message
    assert message["content"] == 'Let me see.\n<tool_call>{"name": "add"'


def test_response_with_reasoning_and_calls_is_chat_message() -> None:
    call = ToolCall(name="add", arguments={"a": 1, "b": "ü"}, id="c1")
    message = Response(text="…", content="", reasoning="1 and ü", tool_calls=(call,)).message
    assert json.loads(json.dumps(message)) == message
    assert message["reasoning_content"] == "1 and ü"
    (made,) = message["tool_calls"]
    assert (made["id"], made["type"], made["function"]["name"]) == ("c1", "function", "add")
    assert json.loads(made["function"]["arguments"]) == {"a": 1, "b": "ü"}
