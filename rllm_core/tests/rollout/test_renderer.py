"""New messages become tokens, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from expecting import expect_error

from rllm_core.errors import RolloutError
from rllm_core.rollout.template_renderer import RESPONSE, TemplateRenderer, token_texts

STOP = ord("$")
USER = [{"role": "user", "content": "hi"}]


def _text(tokens: Any) -> str:
    return "".join(chr(token) for token in tokens)


@pytest.fixture
def renderer(tokenizer: Any) -> TemplateRenderer:
    return TemplateRenderer(tokenizer, [STOP])


def test_a_prompt_ends_where_the_response_begins(renderer: TemplateRenderer) -> None:
    system = {"role": "system", "content": "be brief"}
    assert _text(renderer.prompt([system, *USER])) == "<s>be brief<u>hi<a>"
    assert renderer.prompt(USER).dtype == np.int32


def test_continuation_contains_only_new_tokens(renderer: TemplateRenderer, tokenizer: Any) -> None:
    assert _text(renderer.continuation(ord("x"), USER)) == "$<u>hi<a>"
    assert tokenizer.encoded[0] == "$<u>hi<a>"
    # Neither the response nor anything before it is tokenized again.
    assert not any("<u>." in text or RESPONSE in text for text in tokenizer.encoded)


@pytest.mark.parametrize(
    ("stops", "last", "messages", "expected"),
    [
        ("$", "$", USER, "<u>hi<a>"),
        ("$", "x", USER, "$<u>hi<a>"),
        ("$%", "%", USER, "$<u>hi<a>"),  # another stop token than the template's
        ("%", "$", USER, "$<u>hi<a>"),  # no stop token
        ("$", "$", [], "<a>"),
    ],
)
def test_a_sampled_stop_token_is_not_repeated(
    tokenizer: Any, stops: str, last: str, messages: Any, expected: str
) -> None:
    assert _text(TemplateRenderer(tokenizer, [*map(ord, stops)]).continuation(ord(last), messages)) == expected


@pytest.mark.parametrize("tools", [(), ({"type": "function", "function": {"name": "look_up"}},)])
def test_all_messages_use_the_same_named_template(tokenizer: Any, tools: Any) -> None:
    def render(messages: Any, **options: Any) -> str:
        end = "%" if options.get("tools") else "$"
        return "".join(f"<{each['role'][0]}>{each['content']}{end}" for each in messages) + "<a>"

    tokenizer.chat_template, tokenizer.apply_chat_template = {"default": "", "tool_use": ""}, render
    renderer = TemplateRenderer(tokenizer, map(ord, "$%"))
    prompt, result = renderer.prompt(USER, tools), {"role": "tool", "content": "3"}
    answer, end = [ord("x")], "%" if tools else "$"
    bridged = renderer.bridge(prompt, answer, [result], tools)
    assert _text(bridged) == f"<u>hi{end}<a>x{end}<t>3{end}<a>"
    assert bridged.tolist() == renderer.prompt([*USER, {"role": "assistant", "content": "x"}, result], tools).tolist()


def test_response_ids_end_as_the_template_ends(tokenizer: Any, renderer: TemplateRenderer) -> None:
    assert _text(renderer.response_ids("hello")) == "hello$"
    assert _text(TemplateRenderer(tokenizer, [ord("%")]).response_ids("hello")) == "hello"


def test_words_are_decoded_without_special_tokens(renderer: TemplateRenderer) -> None:
    assert renderer.text(np.array([ord("h"), ord("i"), STOP], np.int32)) == "hi"


@pytest.mark.parametrize(
    "template",
    [
        lambda messages: "".join(m["content"] for m in messages if m["role"] != "assistant"),
        lambda messages: "".join(m["content"] for m in messages) + messages[1]["content"],
        lambda messages: "".join(m["content"].lower() for m in messages),
    ],
    ids=["hides the response", "repeats the response", "changes the response"],
)
def test_templates_that_hide_responses_are_refused(tokenizer: Any, template: Callable[[Any], str]) -> None:
    tokenizer.apply_chat_template = lambda messages, **options: template(messages)
    with expect_error(RolloutError, "unsupported-chat-template", "tokenizer.chat_template"):
        TemplateRenderer(tokenizer, [STOP]).continuation(STOP, USER)


def test_everything_is_rendered_once_and_then_remembered(renderer: TemplateRenderer, tokenizer: Any) -> None:
    for _ in range(3):
        renderer.prompt(USER)
        renderer.continuation(STOP, USER)
        renderer.continuation(ord("x"), USER)
        renderer.continuation(ord("y"), USER)  # which token it is does not matter unless it is a stop token
        renderer.text([ord("h"), STOP])
        renderer.text(np.array([ord("h"), STOP]))
    assert (tokenizer.templated, len(tokenizer.encoded), tokenizer.decoded) == (3, 3, 1)


def test_what_is_remembered_cannot_be_changed(renderer: TemplateRenderer) -> None:
    for tokens in (renderer.prompt(USER), renderer.continuation(STOP, USER), renderer.continuation(ord("x"), USER)):
        with pytest.raises(ValueError, match="read-only"):
            tokens[0] = 0


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ([7], [8], (7, 8)),
        ([7, 1], [8], None),
        ([7], [8, 1], None),
        ([], [], None),
        ([0], [0], None),  # both unknown to the tokenizer
    ],
)
def test_reasoning_needs_one_separate_token_per_mark(start: Any, end: Any, expected: Any) -> None:
    class Vocabulary:
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return {"<think>": start, "</think>": end}.get(text, [1, 2])

    tokenizer: Any = Vocabulary()
    assert TemplateRenderer(tokenizer, []).reasoning_ids == expected


def test_template_options_reach_prompts_and_continuations(tokenizer: Any) -> None:
    given: list[dict[str, Any]] = []
    template = tokenizer.apply_chat_template

    def remember(conversation: Any, **options: Any) -> Any:
        given.append({name: options.pop(name) for name in list(options) if name.startswith("enable")})
        return template(conversation, **options)

    tokenizer.apply_chat_template = remember
    renderer = TemplateRenderer(tokenizer, [STOP], {"enable_thinking": False})
    assert _text(renderer.prompt(USER)) == "<u>hi<a>"
    assert _text(renderer.continuation(STOP, USER)) == "<u>hi<a>"
    assert len(given) >= 2
    assert all(options == {"enable_thinking": False} for options in given)


def test_a_bridge_keeps_every_token_that_came_before(renderer: TemplateRenderer) -> None:
    prompt, sampled = renderer.prompt(USER), np.array([ord("o"), ord("k"), STOP], np.int32)
    assert _text(renderer.bridge(prompt, sampled, USER)) == "<u>hi<a>ok$<u>hi<a>"
    assert _text(renderer.bridge(prompt, sampled[:2], USER)) == "<u>hi<a>ok$<u>hi<a>"
    assert _text(renderer.bridge(prompt, sampled[:0], USER)) == "<u>hi<a>$<u>hi<a>"


def test_template_gets_tools_text_and_argument_objects(tokenizer: Any) -> None:
    given: list[Any] = []

    def remember(conversation: Any, **options: Any) -> str:
        given.append((conversation, options.get("tools")))
        return f"{options.get('tools')}<a>"

    tokenizer.apply_chat_template = remember
    calls = [{"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]
    parts = [
        {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
        {"role": "assistant", "content": None, "tool_calls": calls},
    ]
    plain = [
        {"role": "user", "content": "hi"},
        {**parts[1], "tool_calls": [calls[0] | {"function": {"name": "add", "arguments": {"a": 1}}}]},
    ]
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
    renderer = TemplateRenderer(tokenizer, [STOP])
    renderer.prompt(parts, tools)
    renderer.prompt(parts)
    assert given[0] == (plain, tools)
    assert given[-1] == (plain, None)


def test_response_without_reasoning_tokens_is_all_content(renderer: TemplateRenderer) -> None:
    response = renderer.parse(renderer.prompt(USER), [ord("o"), ord("k"), STOP])
    assert (response.text, response.content, response.reasoning, response.tool_calls) == ("ok", "ok", None, ())


def _refuse(conversation: Any, **options: Any) -> str:
    raise ValueError("System role not supported")


@pytest.mark.parametrize(
    ("template", "content", "tools", "code", "values"),
    [
        (None, [{"type": "image_url", "image_url": {"url": "x"}}], (), "unsupported-chat-template", []),
        (None, {1, 2}, (), "not-json", []),
        (lambda conversation, **options: "<a>", "hi", [{"type": "function"}], "tools-not-supported", []),
        (_refuse, "hi", (), "plugin-failed", ["ValueError"]),
    ],
)
def test_prompts_that_cannot_be_rendered_are_errors(
    tokenizer: Any, template: Any, content: Any, tools: Any, code: str, values: list[str]
) -> None:
    if template:
        tokenizer.apply_chat_template = template
    with expect_error(RolloutError, code, *values):
        TemplateRenderer(tokenizer, [STOP]).prompt([{"role": "user", "content": content}], tools)


class TwoMarks:
    """Ends a turn with two marks, ``#`` and ``$``; only the last one is a stop token."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        ends = {"assistant": "#$", "user": "$"}
        return "".join(f"<{m['role'][0]}>{m['content']}{ends[m['role']]}" for m in conversation) + "<a>"

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [*map(ord, text)]

    def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> str:
        return _text(token for token in token_ids if chr(token) not in "#$")


@pytest.mark.parametrize("sampled", ["ok#$", "ok#", "ok"])
def test_bridge_never_repeats_a_sampled_end_mark(sampled: str) -> None:
    renderer = TemplateRenderer(TwoMarks(), [STOP])
    prompt = renderer.prompt(USER)
    assert _text(renderer.bridge(prompt, [*map(ord, sampled)], USER)) == "<u>hi$<a>ok#$<u>hi$<a>"


def test_bridge_keeps_a_lone_stop_token() -> None:
    renderer = TemplateRenderer(TwoMarks(), [STOP])
    assert _text(renderer.bridge([], [ord("$")], USER)) == "$<u>hi$<a>"


WORDS = {0: "a", 1: " the", 2: "re", 3: "</s>", 4: "\ufffd"}


class DropsTheFirstSpace:
    """As tokenizers of SentencePiece."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [0]

    def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return "".join(WORDS[token] for token in token_ids).removeprefix(" ")

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        raise NotImplementedError


def test_leading_space_is_part_of_a_token() -> None:
    assert token_texts(DropsTheFirstSpace(), [1, 2, 3, 4]) == [" the", "re", "</s>", "\ufffd"]
