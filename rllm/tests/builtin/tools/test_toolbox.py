"""Functions as tools: their schema, the files that contain them, and the answer to each call of a model."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from expecting import check_values, expect_error
from pydantic import BaseModel, ValidationError

from rllm.builtin.tools import plugin
from rllm.builtin.tools.toolbox import (
    Answer,
    Arguments,
    Toolbox,
    as_text,
    load_function,
    load_tools,
    runnable,
    tool_schema,
    without_thread,
)
from rllm.builtin.tools.workflow import ToolCallingParams
from rllm_core.contracts.workflow import OpenedRun
from rllm_core.data.messages import MalformedToolCall, Response, ToolCall
from rllm_core.errors import ConfigError
from rllm_core.schema.run_config import RunConfig

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


def test_unreadable_call_is_answered() -> None:
    first, second = answered(("it is broken",), ("add", {"a": 1, "b": 1}), finish_reason="length")
    assert first.message["content"] == "2"
    assert second.outcome == "malformed"
    assert second.message["role"] == "tool"
    check_values(second.message["content"], "Error: ", "it is broken", "cut off")


def test_calls_of_one_response_run_concurrently() -> None:
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

    tool = runnable(look) if threads else without_thread(runnable(look))
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


def add_whole(a: int, b: int = 2) -> int:
    """Adds two whole numbers.

    Exactly.

    Args:
        a: the first one
        b: the second one,
            which may be left out

    Returns:
        their sum
    """
    return a + b


def search_texts(query: str, limit: int | None, tags: list[str], exact: bool = False) -> str:
    """Searches.

    Args:
        query: what to look for
        limit: how many at most
        tags: only these
        exact: whether words must be whole
    """
    return query


def draw(shape: Literal["circle", "square"], size: float, options: dict[str, int], place: int | str) -> None:
    """Draws.

    Args:
        shape: what
        size: how large
        options: more
        place: where
    """


def now() -> str:
    """Says the time."""
    return ""


def ragged(table: list[list[float]], data: Any, extra: dict) -> None:  # type: ignore[type-arg]
    """Takes what is nested.

    Args:
        table: rows
        data: anything
        extra: names and values
    """


@pytest.mark.parametrize("function", [add_whole, search_texts, draw, now, ragged])
def test_the_schema_is_the_one_that_transformers_writes(function: Any) -> None:
    utils = pytest.importorskip("transformers.utils")
    reference = utils.get_json_schema(function)
    reference["function"].pop("return", None)
    assert tool_schema(function.__name__, Arguments(function, function.__name__)) == reference


def test_methods_objects_and_bare_functions_have_schemas() -> None:
    class Adder:
        def add(self, a: int) -> int:
            return a

        def __call__(self, b: int) -> int:
            return b

    def bare(a: int, b: str) -> None: ...

    assert [*Arguments(Adder().add, "add").parameters["properties"]] == ["a"]
    assert [*Arguments(Adder(), "Adder").parameters["properties"]] == ["b"]
    schema = tool_schema("bare", Arguments(bare, "bare"))["function"]
    assert schema["description"] == ""
    assert schema["parameters"]["properties"] == {"a": {"type": "integer"}, "b": {"type": "string"}}


def test_models_are_described_where_they_are_named() -> None:
    class Place(BaseModel):
        x: int

    def go(place: Place) -> None: ...

    go.__annotations__["place"] = Place
    arguments = Arguments(go, "go")
    assert arguments.parameters["properties"]["place"] == {"$ref": "#/$defs/Place"}
    assert arguments.parameters["$defs"]["Place"]["properties"]["x"]["type"] == "integer"
    assert arguments.read({"place": {"x": 3}}) == {"place": Place(x=3)}


def test_names_that_models_of_pydantic_have_are_free() -> None:
    def keep(schema: str, copy: int, model_config: bool, _hidden: int) -> None: ...

    given = {"schema": "s", "copy": 1, "model_config": True, "_hidden": 2}
    assert Arguments(keep, "keep").read(given) == given


@pytest.mark.parametrize("given", [{}, {"a": "one"}, {"a": 1, "c": 2}, {"a": None}])
def test_arguments_that_do_not_fit_are_refused(given: dict[str, Any]) -> None:
    assert Arguments(add_whole, "add").read({"a": "1"}) == {"a": 1}
    with pytest.raises(ValidationError):
        Arguments(add_whole, "add").read(given)


def _untyped(a, b: int) -> None: ...  # type: ignore[no-untyped-def]


def _many(*numbers: int) -> None: ...


def _any_names(**numbers: int) -> None: ...


def _by_place(a: int, /) -> None: ...


def _of_a_class(a: socketlike) -> None: ...  # type: ignore[name-defined]  # noqa: F821


class _Opaque:
    pass


def _opaque(a: _Opaque) -> None: ...


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (_untyped, ("bad-tool", "'a'", "'f'")),
        (_many, ("bad-tool",)),
        (_any_names, ("bad-tool",)),
        (_by_place, ("bad-tool",)),
        (_of_a_class, ("bad-tool", "'socketlike'")),
        (_opaque, ("bad-tool",)),
    ],
)
def test_functions_that_no_model_can_call_are_refused(function: Any, problem: tuple[str, ...]) -> None:
    with expect_error(ConfigError, *problem, "def add(a: int, b: int)"):
        Arguments(function, "f")


Write = Callable[[str], Path]


def test_functions_of_one_file_share_its_variables(tool_file: Write) -> None:
    path = tool_file("seen = []\ndef put(x: int) -> None: seen.append(x)\ndef get() -> list[int]: return seen\n")
    put, get = (load_function(f"{path}:{name}") for name in ("put", "get"))
    put(3)
    assert get() == [3]
    for number in (200, 300):
        tool_file(f"def get() -> int: return {number}\n")
        os.utime(path, (0, 0))  # its content decides, not its time
        assert load_function(f"{path}:get")() == number


def test_annotations_may_be_texts(tool_file: Write) -> None:
    path = tool_file("from __future__ import annotations\nN = int\ndef add(a: N) -> N: return a\n")
    (tool,) = load_tools([f"{path}:add"])
    assert tool.schema["function"]["parameters"]["properties"] == {"a": {"type": "integer"}}


@pytest.mark.parametrize(
    ("source", "name", "message", "hint"),
    [
        ("def add(): ...", "ad", "has no function 'ad'.", "Did you mean 'add'?"),
        ("def add(): ...", "fly", "has no function 'fly'.", "Its functions: add."),
        ("x = 1", "x", "has no function 'x'.", "Its functions: none."),
        ("def add(:", "add", "line 1: syntax error", "check with: python"),
        ("import os\n1 / 0", "add", "line 2: ZeroDivisionError", "check with: python"),
        ("exit(3)", "add", "line 1: SystemExit", "check with: python"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tool_file: Write, source: str, name: str, message: str, hint: str) -> None:
    path = tool_file(source)
    with pytest.raises(ConfigError) as caught:
        load_function(f"{path}:{name}")
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("tool", ["FILE", "FILE:", "FILE:a b", "add", ":add", ":"])
def test_a_tool_is_a_file_and_a_function(tool_file: Write, tool: str) -> None:
    path = tool_file("def multiply(): ...\ndef add(): ...")
    with expect_error(ConfigError, "bad-function-name", path if "FILE" in tool else "workflow_args.tools"):
        load_function(tool.replace("FILE", str(path)))


def test_a_file_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with expect_error(ConfigError, "file-unreadable", "tools.py") as caught:
        load_function("tools.py:add")
    assert str(tmp_path) in caught.value.hint


def test_tool_file_pipe_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tools.py")
    with expect_error(ConfigError, "file-unreadable"):
        load_function(f"{tmp_path / 'tools.py'}:add")


def test_files_are_checked_before_and_opened_once(tool_file: Callable[[str], Path]) -> None:
    (record,) = plugin.rllm_workflows()
    params = ToolCallingParams(tools=[f"{tool_file('def add(a: int) -> int: return a')}:add"])
    assert record.check is not None
    assert record.open is not None
    record.check(params)
    with pytest.raises(ConfigError, match="has no function 'ad'"):
        record.check(ToolCallingParams(tools=[params.tools[0].removesuffix("d")]))

    async def opened() -> list[str]:
        run = OpenedRun(config=RunConfig(), engine=None, directory=None)  # type: ignore[arg-type]
        async with record.open(run, params) as tools:
            return [tool.name for tool in tools]

    assert asyncio.run(opened()) == ["add"]
