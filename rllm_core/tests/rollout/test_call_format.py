"""Tool calls are read as the model's template writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tool_tokenizer import ToolTokenizer

from rllm_core.data.messages import MalformedToolCall, ToolCall
from rllm_core.rollout.call_format import OFFERED, CallFormat
from rllm_core.rollout.template_renderer import TemplateRenderer

STOP = ord("$")
MARKED = CallFormat("<call>", "</call>", "arguments")
BARE = CallFormat("", "", "parameters")
ADD = {"name": "add", "arguments": {"a": 1}}


def _bare(call: Any) -> str:
    return json.dumps({"name": call["name"], "parameters": call["arguments"]})


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda call: f"<call>{json.dumps(call)}</call>", MARKED),
        (lambda call: f"\n<call>\n{json.dumps(call)}\n</call>", MARKED),
        (lambda call: f"<call>{call['name']}: {json.dumps(call['arguments'])}</call>", None),
        (lambda call: f"<call>{call['name']}({call['arguments']})</call>", None),
        (lambda call: "", None),
        (lambda call: 1 / 0, None),
    ],
)
def test_call_format_is_read_from_the_template(call: Any, expected: Any) -> None:
    assert TemplateRenderer(ToolTokenizer(call=call), [STOP]).call_format == expected


def test_template_with_bare_object_has_a_format() -> None:
    class OneAtATime(ToolTokenizer):
        def _turn(self, message: Any) -> str:
            calls = message.get("tool_calls", ())
            if len(calls) > 1:
                raise ValueError("This model only supports single tool-calls at once!")
            return _bare(calls[0]["function"]) if calls else str(super()._turn(message))

        def apply_chat_template(self, conversation: Any, **options: Any) -> str:
            shown = str(super().apply_chat_template(conversation, **options))
            return shown if conversation[-1]["role"] == "user" else shown.replace("{", "<a>{", 1).removesuffix("<a>")

    tokenizer: Any = OneAtATime(tools=lambda tools: "")
    assert TemplateRenderer(tokenizer, [STOP]).call_format == BARE


@pytest.mark.parametrize(
    ("form", "text", "said", "calls"),
    [
        (MARKED, "hello", "hello", []),
        (MARKED, f"<call>{json.dumps(ADD)}</call>", "", [ToolCall(name="add", arguments={"a": 1}, id="call_0")]),
        (
            MARKED,
            'let me <call>{"name": "now"}</call><call>\n{"name": "add", "arguments": {}}\n</call> see',
            "let me\nsee",
            [ToolCall(name="now", arguments={}, id="call_0"), ToolCall(name="add", arguments={}, id="call_1")],
        ),
        (MARKED, '<call>{"name": "now"}', "", [ToolCall(name="now", arguments={}, id="call_0")]),
        # A bare call is the whole response.
        (BARE, _bare(ADD), "", [ToolCall(name="add", arguments={"a": 1}, id="call_0")]),
        (BARE, '{"name": "add"}', '{"name": "add"}', []),
        (BARE, f"I say {_bare(ADD)}", f"I say {_bare(ADD)}", []),
    ],
)
def test_calls_are_told_from_words(form: CallFormat, text: str, said: str, calls: list[ToolCall]) -> None:
    assert form.read(text) == (said, calls)


@pytest.mark.parametrize(
    ("form", "text", "problem"),
    [
        (MARKED, '<call>{"name": "add", "argu', "JSON object"),
        (MARKED, "<call>add(1)</call>", "JSON object"),
        (MARKED, "<call>[1]</call>", 'no "name"'),
        (MARKED, '<call>{"name": 3}</call>', 'no "name"'),
        (MARKED, '<call>{"name": "add", "arguments": "1"}</call>', '"arguments"'),
        (MARKED, '<call>{"name": "add"} and more</call>', "more than"),
        (BARE, '{"name": "add", "parameters": {"a"', ""),
    ],
)
def test_what_cannot_be_read_is_said(form: CallFormat, text: str, problem: str) -> None:
    said, (call,) = form.read(text)
    assert isinstance(call, MalformedToolCall)
    assert problem in call.problem
    assert text.removesuffix("</call>") in call.text
    assert said == ""


def test_response_contains_calls_and_other_text() -> None:
    renderer = TemplateRenderer(ToolTokenizer(), [STOP])
    text = f"wait <call>{json.dumps(ADD)}</call><call>add</call>"
    ids = [*map(ord, text + "$")]
    response = renderer.parse(renderer.prompt([{"role": "user", "content": "?"}]), ids, [OFFERED])
    assert (response.text, response.content) == (text, "wait")
    assert [(call.name, call.arguments) for call in response.tool_calls] == [("add", {"a": 1})]
    assert [call.text for call in response.malformed_calls] == ["<call>add</call>"]
    response = renderer.parse([], ids)  # no tools were offered
    assert (response.text, response.content, response.tool_calls) == (text, text, ())


def test_marks_that_are_special_tokens_are_seen() -> None:
    class Special(ToolTokenizer):
        def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> str:
            text = str(super().decode(token_ids, skip_special_tokens=skip_special_tokens))
            return text.replace("<call>", "").replace("</call>", "") if skip_special_tokens else text

    tokenizer: Any = Special()
    response = TemplateRenderer(tokenizer, [STOP]).parse([], [*map(ord, f"<call>{json.dumps(ADD)}</call>$")], [OFFERED])
    assert [call.name for call in response.tool_calls] == ["add"]
    assert response.text == json.dumps(ADD)
