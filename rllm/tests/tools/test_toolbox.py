"""Whatever a model calls is answered."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from expecting import check_values, expect_error

from rllm.tools.toolbox import Answer, Toolbox, as_text, in_the_loop, runnable
from rllm_core.data.messages import MalformedToolCall, Response, ToolCall
from rllm_core.errors import ConfigError

HANG = 3600.0


def add(a: int, b: int) -> int:
    return a + b


async def add_later(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


def fail() -> None:
    raise ValueError("no such\npage")


def leave() -> None:
    raise SystemExit(3)


async def give_up() -> None:
    raise asyncio.CancelledError


async def hang() -> None:
    await asyncio.sleep(HANG)


def hang_in_a_thread() -> None:
    threading.Event().wait(HANG)


def time_out() -> None:
    raise TimeoutError("the server")


def response_of(*calls: ToolCall, **fields: Any) -> Response:
    return Response(text="", content="", tool_calls=calls, **fields)


def answered(*calls: Any, seconds: float = 60.0, finish_reason: str = "stop") -> list[Answer]:
    """The answers to a reply with these calls, each a name with arguments, or a malformed one."""
    functions = (add, add_later, fail, leave, give_up, hang, hang_in_a_thread, time_out)
    toolbox = Toolbox([runnable(function) for function in functions], seconds)
    read = [ToolCall(name=call[0], arguments=call[1], id=f"id{n}") for n, call in enumerate(calls) if len(call) == 2]
    malformed = tuple(MalformedToolCall(text="x", problem=call[0]) for call in calls if len(call) == 1)
    response = response_of(*read, malformed_calls=malformed, finish_reason=finish_reason)
    return asyncio.run(toolbox.answers(response))


@pytest.mark.parametrize("name", ["add", "add_later"])
def test_a_call_is_answered_with_its_result(name: str) -> None:
    (answer,) = answered((name, {"a": 1, "b": 2}))
    assert answer == Answer({"role": "tool", "tool_call_id": "id0", "name": name, "content": "3"}, "answered")


@pytest.mark.parametrize(
    ("name", "arguments", "outcome", "values"),
    [
        ("ad", {}, "malformed", ["'ad'", "'add'"]),
        ("fly", {}, "malformed", ["'fly'", "add, add_later, fail, leave"]),
        ("add", {"a": 1}, "malformed", ["add", "b: "]),
        ("add", {"a": 1, "b": "x"}, "malformed", ["add", "b: ", "integer"]),
        ("fail", {}, "failed", ["fail", "ValueError: no such page"]),
        ("leave", {}, "failed", ["leave", "SystemExit: 3"]),
        ("give_up", {}, "failed", ["give_up"]),
        ("time_out", {}, "failed", ["time_out", "TimeoutError: the server"]),
    ],
)
def test_what_goes_wrong_is_said_to_the_model(name: str, arguments: Any, outcome: str, values: list[str]) -> None:
    (answer,) = answered((name, arguments))
    assert answer.outcome == outcome
    assert answer.message["content"].startswith("Error: ")
    check_values(answer.message["content"], *values)
    assert answer.message["tool_call_id"] == "id0"


@pytest.mark.parametrize("name", ["hang", "hang_in_a_thread"])
def test_a_call_that_hangs_is_left_behind(name: str) -> None:
    (answer,) = answered((name, {}), seconds=0.05)
    assert answer.outcome == "failed"
    check_values(answer.message["content"], f"Error: {name} ", "0.05 s")


def test_a_call_that_cannot_be_read_is_answered_too() -> None:
    first, second = answered(("it is broken",), ("add", {"a": 1, "b": 1}), finish_reason="length")
    assert first.message["content"] == "2"
    assert second.outcome == "malformed"
    assert second.message["role"] == "tool"
    check_values(second.message["content"], "Error: ", "it is broken", "cut off")


def test_calls_of_one_response_run_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=60)

    def meet(name: str) -> str:
        both.wait()
        return name

    toolbox = Toolbox([runnable(meet)], 60.0)
    calls = [ToolCall(name="meet", arguments={"name": name}, id=name) for name in "ab"]
    answers = asyncio.run(toolbox.answers(response_of(*calls)))
    assert [(each.message["tool_call_id"], each.message["content"]) for each in answers] == [("a", "a"), ("b", "b")]


def test_a_cancelled_rollout_stays_cancelled() -> None:
    async def cancel() -> None:
        response = response_of(ToolCall(name="hang", arguments={}))
        rollout = asyncio.ensure_future(Toolbox([runnable(hang)], 60.0).answers(response))
        await asyncio.sleep(0.01)
        rollout.cancel()
        await rollout

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())


@pytest.mark.parametrize("threads", [False, True])
def test_functions_may_do_without_a_thread(threads: bool) -> None:
    seen: list[threading.Thread] = []

    def look() -> None:
        seen.append(threading.current_thread())

    tool = runnable(look) if threads else in_the_loop(runnable(look))
    asyncio.run(Toolbox([tool], 60.0).answers(response_of(ToolCall(name="look", arguments={}))))
    assert (seen[0] is not threading.main_thread()) == threads


@pytest.mark.parametrize(
    ("value", "text"),
    [("as it is", "as it is"), (None, "null"), ({"a": [1, 2.5]}, '{"a":[1,2.5]}'), (ValueError("x"), '"x"')],
)
def test_results_are_text_or_json(value: Any, text: str) -> None:
    assert as_text(value) == text


def test_a_schema_with_a_function_is_a_tool() -> None:
    schema = {"type": "function", "function": {"name": "plus", "parameters": {"type": "object"}}}
    tool = runnable((schema, add))
    assert (tool.schema, tool.name, tool.read({"a": 1})) == (schema, "plus", {"a": 1})


@pytest.mark.parametrize("stranger", [{"type": "function"}, "add", ({}, add), (add,), 3])
def test_what_nobody_can_run_is_refused(stranger: Any) -> None:
    with expect_error(ConfigError, "bad-tool"):
        runnable(stranger)
    with expect_error(ConfigError, "duplicate-choice", "'add'"):
        Toolbox([runnable(add), runnable(add)], 1.0)
