"""The tests in a task's data, in the formats of data sets. Each may be JSON text.

- ``{"inputs": […], "outputs": […]}``: text for the standard input and output (APPS, TACO, verl). With ``"fn_name"``:
  the arguments and results of a function.
- ``[{"input": …, "output": …, "fn_name" or "testtype": …}]``, also below ``test_cases`` (TRL, LiveCodeBench). The name
  of the function may be ``func_name`` in ``metadata``.
- ``["assert f(1) == 2", …]``, with imports in ``test_setup_code`` or ``test_imports`` (MBPP).
- ``"def check(candidate): …"``, with a column ``entry_point`` (HumanEval).
- ``"from solution import f"`` with functions ``def test_f(): …``, or with `assert` only (KodCode).
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rllm.builtin.tasks.answers import NoAnswerError, value_at
from rllm_core.errors import ConfigError

COLUMNS = (
    "tests",
    "test_list",
    "test_cases",
    "input_output",
    "test",
    "verification_info",
    "reward_model.ground_truth",
    "public_test_cases",
    "private_test_cases",
)
"""Columns that are tried for the tests, in this order."""
PUBLIC, PRIVATE = COLUMNS[-2:]
"""LiveCodeBench's columns, which are read together."""


@dataclass(frozen=True, kw_only=True)
class StreamTest:
    """A program reads `stdin`, and must print `stdout`."""

    stdin: str
    stdout: str


@dataclass(frozen=True, kw_only=True)
class CallTest:
    """A function must return `result`, or a value in `also`, for JSON arguments."""

    function: str
    arguments: Sequence[Any]
    result: Any
    also: Sequence[Any] = ()


@dataclass(frozen=True, kw_only=True)
class CodeTest:
    """Statements that call functions of the program, and raise an exception if a result is wrong."""

    setup: str
    code: str


Test = StreamTest | CallTest | CodeTest


def read_tests(data: Mapping[str, Any], column: str | None) -> list[Test]:
    """Return the tests of a task.

    Args:
        data: the task's data.
        column: the column with the tests. None: the first of `COLUMNS`.

    Raises:
        NoAnswerError: there are none, or they have none of the formats.
    """
    name = column or next((each for each in COLUMNS if _has(data, each)), None)
    if name is None:
        raise NoAnswerError(f"none of {', '.join(COLUMNS)} is a column. It has {', '.join(sorted(data)) or 'nothing'}")
    names = [PUBLIC, PRIVATE] if column is None and name == PUBLIC and _has(data, PRIVATE) else [name]
    found = [(each, _parse(value_at(data, each))) for each in names]
    if any(each == PRIVATE and isinstance(value, str) for each, value in found):
        raise NoAnswerError(f"column {PRIVATE!r} is not JSON. Decode it first, or set the column {PUBLIC!r}")
    tests = [test for _, value in found for test in _tests(value, data)]
    if not tests:
        raise NoAnswerError(f"column {name!r} has no tests")
    return tests


def check_tests(data: Mapping[str, Any], column: str | None) -> None:
    """Raise ConfigError if a task has no tests that can be run."""
    try:
        read_tests(data, column)
    except NoAnswerError as error:
        raise ConfigError(
            "unreadable-tests",
            f"Reward code cannot read the tests of a task: {error}.",
            "Set --reward code:COLUMN, or remove the row. The formats are in docs/how-to/write-a-reward.md.",
        ) from error


def _has(data: Mapping[str, Any], column: str) -> bool:
    try:
        return value_at(data, column) is not None
    except NoAnswerError:
        return False


def _parse(value: Any) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _tests(found: Any, data: Mapping[str, Any]) -> list[Test]:
    if isinstance(found, str):
        return [_whole_file(found, data)]
    if isinstance(found, Mapping) and "test_cases" in found:
        return _tests(_parse(found["test_cases"]), data)
    if isinstance(found, Mapping) and {"inputs", "outputs"} <= found.keys():
        inputs, outputs = list(found["inputs"]), list(found["outputs"])
        if len(inputs) != len(outputs):
            raise NoAnswerError(f"it has {len(inputs)} inputs and {len(outputs)} outputs")
        return [_unwrap(_case(*pair, found.get("fn_name"))) for pair in zip(inputs, outputs, strict=True)]
    if isinstance(found, Sequence):
        return [_entry(each, data) for each in found]
    raise NoAnswerError(f"{found!r:.80} is no format of tests")


def _entry(entry: Any, data: Mapping[str, Any]) -> Test:
    if isinstance(entry, str):
        setup = "\n".join(
            each if isinstance(each, str) else "\n".join(each)
            for name in ("test_setup_code", "test_imports")
            if (each := data.get(name))
        )
        return _code_test(setup, entry)
    if isinstance(entry, Mapping) and {"input", "output"} <= entry.keys():
        function = entry.get("fn_name")
        if not function and entry.get("testtype") == "functional":
            metadata = _parse(data.get("metadata"))
            function = data.get("fn_name") or (metadata.get("func_name") if isinstance(metadata, Mapping) else None)
            if not function:
                raise NoAnswerError("its tests call a function, but `fn_name` and `metadata.func_name` are missing")
        return _case(entry["input"], entry["output"], function or None)
    raise NoAnswerError(f"{entry!r:.80} is no format of a test")


def _case(given: Any, expected: Any, function: str | None) -> Test:
    if function is None:
        return StreamTest(stdin=_lines(given), stdout=_lines(expected))
    if isinstance(given, str):  # LiveCodeBench writes each argument as JSON on its own line.
        given, expected = [_json(line) for line in given.splitlines() if line.strip()], _json(expected)
    return CallTest(function=function, arguments=list(given), result=expected)


def _unwrap(test: Test) -> Test:
    """Accept the only entry of an expected list, because APPS writes some results as a list with one result."""
    if not isinstance(test, CallTest) or not isinstance(test.result, list) or len(test.result) != 1:
        return test
    return test if test.result[0] in ([], None) else replace(test, also=test.result)


def _lines(text: Any) -> str:
    if isinstance(text, str):
        return text
    if isinstance(text, Sequence) and all(isinstance(line, str) for line in text):
        return "\n".join(text)
    raise NoAnswerError(f"{text!r:.80} is not text, and the tests have no `fn_name`")


def _json(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError as error:
        raise NoAnswerError(f"{text!r:.80} is no JSON") from error


def _whole_file(code: str, data: Mapping[str, Any]) -> CodeTest:
    """Return a file of tests as one test, which calls its functions ``test_…``.

    A function `check` in it is called with the task's ``entry_point``.
    """
    entry, tree = data.get("entry_point"), _python(code)
    functions = [each for each in tree.body if isinstance(each, ast.FunctionDef)]
    calls = [f"{each.name}()" for each in functions if each.name.startswith("test_") and not ast.unparse(each.args)]
    if isinstance(entry, str) and any(each.name == "check" for each in functions):
        # LeetCode's data sets have `Solution().name` here.
        calls = [f"check({entry.rpartition('.')[2]})"]
    return _code_test("", "\n\n".join([code, *calls]) + "\n" if calls else code)


def _code_test(setup: str, code: str) -> CodeTest:
    """Return a test of statements.

    Raises:
        NoAnswerError: it cannot fail.
    """
    _python(setup)
    tree = _python(code)
    if any(isinstance(each, ast.Assert) and isinstance(each.test, ast.Tuple) for each in ast.walk(tree)):
        raise NoAnswerError(f"{code!r:.80} cannot fail, because it has `assert (…, …)` instead of `assert …, …`")
    if not _can_fail(tree):
        raise NoAnswerError(
            f"{code!r:.80} cannot fail, because it runs no `assert`. `check` needs the column `entry_point`"
        )
    return CodeTest(setup=setup, code=code)


def _can_fail(tree: ast.Module) -> bool:
    """True if a test has `assert`, `raise` or a call such as `assert_allclose`, outside of functions without a use."""
    used = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
    used |= {each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute)}
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in used:
            continue
        called = node.func if isinstance(node, ast.Call) else None
        name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
        if isinstance(node, ast.Assert | ast.Raise) or "assert" in name.lower():
            return True
        waiting += ast.iter_child_nodes(node)
    return False


def _python(code: str) -> ast.Module:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NoAnswerError(f"{code!r:.80} is neither JSON nor Python ({error})") from error
