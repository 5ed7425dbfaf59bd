"""Odd but valid rows: each reader makes the same prompt of them, or refuses the same part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rllm.builtin.preferences.rows import read_preference
from rllm.builtin.supervised.rows import Conversation, read_row
from rllm.builtin.tasks.question import Question, QuestionParams
from rllm.rows.messages import REASONING, TRAINED, WITHOUT_MEANING, read_messages
from rllm.rows.problem import RowError
from rllm.rows.tools import read_tools
from rllm_core.errors import ConfigError
from rllm_gateway.apis.chat import ChatApi
from rllm_gateway.apis.fields import RefusedError

ASK: dict[str, Any] = {"role": "user", "content": "2+2?"}
ANSWER = {"role": "assistant", "content": "4"}
FUNCTION = {"name": "add", "arguments": '{"a": 2}'}
CALL = {"id": "c1", "type": "function", "function": FUNCTION}
RESULT = {"role": "tool", "content": "4", "tool_call_id": "c1"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def said(**changes: Any) -> list[Any]:
    """A conversation whose second message, from the assistant, has these keys. None removes a key."""
    return [ASK, {"role": "assistant", "content": "4"} | changes, ASK]


def calling(call: Any, **changes: Any) -> list[Any]:
    return [ASK, {"role": "assistant", "content": "", "tool_calls": [call]} | changes, RESULT]


CALLED = calling(CALL)
EMPTY_CALL = calling(CALL | {"function": {"name": "add", "arguments": "{}"}})
# Name -> messages, and what is read: other messages, or the place of the part that is refused.
MESSAGES: dict[str, tuple[Any, Any]] = {
    "text": ([ASK], [ASK]),
    "developer": ([{"role": "developer", "content": "Add."}, ASK], [{"role": "system", "content": "Add."}, ASK]),
    "system later": ([ASK, ANSWER, {"role": "system", "content": "Add."}, ASK],) * 2,
    "human": ([{"role": "human", "content": "2+2?"}], "messages[0].role"),
    "no role": ([{"content": "2+2?"}], "messages[0].role"),
    "other format": ([{"from": "human", "value": "2+2?"}], "messages[0].role"),
    "role in capitals": ([{"role": "User", "content": "2+2?"}], "messages[0].role"),
    "list as role": ([{"role": ["user"], "content": "2+2?"}], "messages[0].role"),
    "text as message": (["2+2?"], "messages[0]"),
    "null as message": ([ASK, None, ASK], "messages[1]"),
    "no content": ([{"role": "user"}], "messages[0].content"),
    "null content of a user": ([ASK | {"content": None}], "messages[0].content"),
    "null content of an assistant": (said(content=None), said(content="")),
    "null content of a tool": ([*CALLED[:2], RESULT | {"content": None}], [*CALLED[:2], RESULT | {"content": ""}]),
    "number as content": ([ASK | {"content": 4}], "messages[0].content"),
    "object as result": ([*CALLED[:2], RESULT | {"content": {"sum": 4}}], "messages[2].content"),
    "parts": ([ASK | {"content": [{"type": "text", "text": "2"}, {"text": "+2?"}]}], [ASK]),
    "no parts": (said(content=[]), said(content="")),
    "text as part": ([ASK | {"content": ["2+2?"]}], "messages[0].content[0]"),
    "part without text": ([ASK | {"content": [{"type": "text"}]}], "messages[0].content[0].text"),
    "cache mark of a part": ([ASK | {"content": [{"type": "text", "text": "2+2?", "cache_control": {"t": 1}}]}], [ASK]),
    "unknown key of a part": ([ASK | {"content": [{"text": "2+2?", "lang": "en"}]}], "messages[0].content[0].lang"),
    "picture": (
        [ASK | {"content": [{"type": "image_url", "image_url": {"url": "a"}}]}],
        "messages[0].content[0]",
    ),
    "refusal part": (said(content=[{"type": "refusal", "refusal": "No."}]), said(content="No.")),
    "reasoning": (said(reasoning="Two twos."), said(reasoning_content="Two twos.")),
    "thinking": (said(thinking="Two twos."), said(reasoning_content="Two twos.")),
    "same reasoning twice": (said(reasoning="x", reasoning_content="x"), said(reasoning_content="x")),
    "two reasonings": (said(reasoning="x", thinking="y"), "messages[1]"),
    "null reasoning": (said(reasoning_content=None, reasoning=""), said()),
    "reasoning of a user": ([ASK | {"reasoning": "x"}], "messages[0].reasoning"),
    "reasoning as list": (said(reasoning=[{"text": "x"}]), "messages[1].reasoning"),
    "no calls": (said(tool_calls=[]), said()),
    "null calls": (said(tool_calls=None, function_call=None, audio=None, refusal=None, annotations=[]), said()),
    "object as calls": (said(tool_calls={"a": 1}), "messages[1].tool_calls"),
    "calls of a user": ([ASK | {"tool_calls": [CALL]}], "messages[0].tool_calls"),
    "arguments as object": (calling(CALL | {"function": {"name": "add", "arguments": {"a": 2}}}), CALLED),
    "no arguments": (calling(CALL | {"function": {"name": "add"}}), EMPTY_CALL),
    "null arguments": (calling(CALL | {"function": {"name": "add", "arguments": None}}), EMPTY_CALL),
    "blank arguments": (calling(CALL | {"function": {"name": "add", "arguments": " "}}), EMPTY_CALL),
    "list as arguments": (
        calling(CALL | {"function": {"name": "add", "arguments": "[2]"}}),
        "messages[1].tool_calls[0].function.arguments",
    ),
    "arguments cut off": (
        calling(CALL | {"function": {"name": "add", "arguments": '{"a": '}}),
        "messages[1].tool_calls[0].function.arguments",
    ),
    "NaN in arguments": (
        calling(CALL | {"function": {"name": "add", "arguments": '{"a": NaN}'}}),
        "messages[1].tool_calls[0].function.arguments",
    ),
    "null within arguments": (calling(CALL | {"function": FUNCTION | {"arguments": '{"a": null}'}}),) * 2,
    "call without function": (calling({"id": "c1", **FUNCTION}), CALLED),
    "call without type": (calling({"id": "c1", "function": FUNCTION}), CALLED),
    "call with index": (calling(CALL | {"index": 0}), CALLED),
    "call of another type": (calling(CALL | {"type": "custom"}), "messages[1].tool_calls[0]"),
    "call without name": (calling(CALL | {"function": {"arguments": "{}"}}), "messages[1].tool_calls[0].function.name"),
    "unknown key of a call": (calling(CALL | {"result": "4"}), "messages[1].tool_calls[0].result"),
    "unknown key of a function": (
        calling(CALL | {"function": FUNCTION | {"output": "4"}}),
        "messages[1].tool_calls[0].function.output",
    ),
    "text as call": (calling("add(2)"), "messages[1].tool_calls[0]"),
    "null content with a call": (calling(CALL, content=None), CALLED),
    "two kinds of calls": (calling(CALL, function_call=FUNCTION), "messages[1]"),
    "number as call id": ([*CALLED[:2], RESULT | {"tool_call_id": 1}], "messages[2].tool_call_id"),
    "call id of a user": ([ASK | {"tool_call_id": "c1"}], "messages[0].tool_call_id"),
    "name": ([ASK | {"name": "Ann"}],) * 2,
    "weight": (said(weight=0), said()),
    "loss and train": (said(loss=False, train=0), said()),
    "half weight": (said(weight=0.5), "messages[1].weight"),
    "contrary weights": (said(weight=0, loss=True), "messages[1]"),
    "weight of a user": ([ASK | {"weight": 1}], "messages[0].weight"),
    "metadata": ([ASK | {"id": "m1", "metadata": {"a": 1}, "timestamp": 3}], [ASK]),
    "unknown key": ([ASK | {"mood": "kind"}], "messages[0].mood"),
    "false prefix": (said(prefix=False), said()),
    "prefix": (said(prefix=True), "messages[1].prefix"),
}
ADD = {"name": "add", "parameters": SCHEMA}
TOOL = {"type": "function", "function": ADD}
DEFAULT = {"type": "function", "function": {"name": "a", "parameters": {"default": None}}}
# Name -> tools, and what is read: other tools, or the place of the part that is refused.
TOOLS: dict[str, tuple[Any, Any]] = {
    "null": (None, []),
    "blank": ("", []),
    "JSON text": (json.dumps([TOOL]), [TOOL]),
    "list of JSON texts": ([json.dumps(TOOL)], [TOOL]),
    "no type": ([{"function": ADD}], [TOOL]),
    "function itself": ([{"type": "function", **ADD}], [TOOL]),
    "strict": ([{"type": "function", "function": {**ADD, "strict": True}}], [TOOL]),
    "null description": ([{"type": "function", "function": {**ADD, "description": None}}], [TOOL]),
    "parameters as text": ([{"function": {"name": "add", "parameters": json.dumps(SCHEMA)}}], [TOOL]),
    "null in a schema": ([DEFAULT], [DEFAULT]),
    "no JSON": ("add", "tools"),
    "object": (TOOL, "tools"),
    "name only": (["add"], "tools[0]"),
    "no name": ([{"type": "function", "function": {"parameters": SCHEMA}}], "tools[0].function.name"),
    "another type": ([{"type": "web_search"}], "tools[0]"),
    "another format": ([{"name": "add", "input_schema": SCHEMA}], "tools[0].input_schema"),
    "list as parameters": ([{"function": {"name": "add", "parameters": []}}], "tools[0].function.parameters"),
    "number as description": ([{"function": {**ADD, "description": 1}}], "tools[0].function.description"),
    "unknown key": ([TOOL | {"price": 1}], "tools[0].price"),
    "twice": ([TOOL, TOOL], "tools"),
}
Read = tuple[list[Any], list[Any]]


def by_train(messages: Any, tools: Any) -> Read:
    return [*Question(QuestionParams()).reset({"messages": messages})], []


def by_sft(messages: Any, tools: Any) -> Read:
    return _prompt_of(read_row({"messages": [*messages, ANSWER], "tools": tools}))


def by_prefer(messages: Any, tools: Any) -> Read:
    other = ANSWER | {"content": "5"}
    row = {"prompt": messages, "chosen": [ANSWER], "rejected": [other], "tools": tools}
    return _prompt_of(read_preference(row)["chosen"])


def by_gateway(messages: Any, tools: Any) -> Read:
    asked = ChatApi.read({"messages": messages, "tools": tools}, "refuse")
    return [*asked.messages], [*asked.tools]


def _prompt_of(example: Any) -> Read:
    assert isinstance(example, Conversation)
    return [*example.messages[:-1]], [*example.tools]


READERS = (by_train, by_sft, by_prefer, by_gateway)


def place_refused(reader: Any, messages: Any, tools: Any) -> str:
    with pytest.raises((ConfigError, RowError, RefusedError)) as caught:
        reader(messages, tools)
    error = caught.value.__cause__ if isinstance(caught.value, ConfigError) else caught.value
    assert getattr(error, "hint", True)
    place = error.param if isinstance(error, RefusedError) else error.place
    return place.replace("prompt", "messages", 1) if reader is by_prefer else place


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("messages", "expected"), MESSAGES.values(), ids=MESSAGES)
def test_readers_make_equal_prompts_or_reject_equal_parts(reader: Any, messages: Any, expected: Any) -> None:
    if isinstance(expected, str):
        assert place_refused(reader, messages, None) == expected
    else:
        assert reader(messages, None)[0] == expected


@pytest.mark.parametrize("reader", [by_sft, by_prefer, by_gateway])
@pytest.mark.parametrize(("tools", "expected"), TOOLS.values(), ids=TOOLS)
def test_readers_offer_equal_tools_or_reject_equal_parts(reader: Any, tools: Any, expected: Any) -> None:
    if isinstance(expected, str):
        assert place_refused(reader, [ASK], tools) == expected
    else:
        assert reader([ASK], tools)[1] == expected


TEXTS = st.text(max_size=3)
LEAVES = st.none() | st.booleans() | st.integers(0, 2) | TEXTS
ANY = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2))
OBJECTS = st.dictionaries(TEXTS, ANY, max_size=2)
WORDS = st.text(min_size=1, max_size=3)
BLANK = st.sampled_from([None, "", [], {}, False])
PARTS = st.fixed_dictionaries({"text": TEXTS}, optional={"type": st.just("text"), "cache_control": ANY, "note": BLANK})
CONTENTS = TEXTS | st.lists(PARTS, max_size=2)
CALLED = st.fixed_dictionaries(
    {"name": WORDS}, optional={"arguments": OBJECTS | st.none() | st.builds(json.dumps, OBJECTS), "output": BLANK}
)
CALLS = st.builds(
    dict, st.fixed_dictionaries({}, optional={"id": TEXTS, "index": st.integers(0, 1), "type": st.just("function")})
).flatmap(lambda call: CALLED.map(lambda function: {**call, "function": function} if call else function))
NO_CALLS = {"refusal": BLANK, "audio": BLANK, "mood": BLANK, "metadata": ANY, "id": LEAVES}
ASSISTANTS = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": CONTENTS | st.none()},
    optional={
        "tool_calls": st.lists(CALLS, max_size=2) | BLANK.filter(lambda each: each != {}),
        "name": WORDS,
        **NO_CALLS,
    },
)
TRAINABLE = st.builds(
    lambda message, key, text, mark, weight: message | ({key: text} if text else {}) | ({mark: weight} if mark else {}),
    ASSISTANTS,
    st.sampled_from(REASONING),
    TEXTS,
    st.sampled_from([*TRAINED, ""]),
    st.sampled_from([0, 1, True, False, None]),
)
OTHERS = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user"]), "content": CONTENTS},
    optional={"name": WORDS, **NO_CALLS},
)
RESULTS = st.fixed_dictionaries(
    {"role": st.sampled_from(["tool", "function"]), "content": CONTENTS | st.none()},
    optional={"tool_call_id": WORDS, "name": WORDS, **NO_CALLS},
)
FUNCTIONS = st.fixed_dictionaries(
    {"name": WORDS},
    optional={"description": TEXTS | st.none(), "parameters": OBJECTS | st.none(), "x": ANY, "strict": st.booleans()},
)
OFFERED = st.fixed_dictionaries({"function": FUNCTIONS}, optional={"type": st.just("function"), "note": BLANK})


def leaves_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list) and value:
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves_of(each, (*path, key))
    else:
        yield path


def changed(value: Any, path: tuple[Any, ...]) -> Any:
    """Return a copy with another value at the path."""
    if not path:
        if isinstance(value, bool):
            return not value
        return value + 1 if isinstance(value, int) else f"{value}x" if isinstance(value, str) else "x"
    copied = value.copy()
    copied[path[0]] = changed(value[path[0]], path[1:])
    return copied


IGNORED = WITHOUT_MEANING | {"index", "strict"}


@pytest.mark.parametrize(
    ("read", "rows"),
    [
        (read_messages, st.lists(TRAINABLE | OTHERS | RESULTS, min_size=1, max_size=3)),
        (read_tools, st.lists(OFFERED | FUNCTIONS, min_size=1, max_size=1)),
    ],
)
@given(st.data())
def test_no_leaf_of_a_row_vanishes(read: Any, rows: Any, data: st.DataObject) -> None:
    """A change of any leaf of a valid row changes what is read, or is refused."""
    row = data.draw(rows)
    before = read(row)
    path = data.draw(st.sampled_from([*leaves_of(row)]))
    try:
        after = read(changed(row, path))
    except RowError:
        return
    assert before != after or IGNORED.intersection(path), path
