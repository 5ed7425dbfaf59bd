"""The tests in a task's data, in the formats of data sets. Each may be JSON text.

- ``{"inputs": […], "outputs": […]}``: text for the standard input and output (APPS, TACO, verl). With ``"fn_name"``:
  the arguments and results of a function.
- ``[{"input": …, "output": …, "fn_name" or "testtype": …}]``, also below ``test_cases`` (TRL, LiveCodeBench).
- ``["assert f(1) == 2", …]``, with imports in ``test_setup_code`` or ``test_imports`` (MBPP).
- ``"def check(candidate): …"``, with a column ``entry_point`` (HumanEval).
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
)
"""Columns that are tried for the tests, in this order."""


@dataclass(frozen=True, kw_only=True)
class StreamTest:
    """A program reads `stdin`, and must print `stdout`."""

    stdin: str
    stdout: str


@dataclass(frozen=True, kw_only=True)
class CallTest:
    """A function must return `result` for JSON arguments."""

    function: str
    arguments: Sequence[Any]
    result: Any


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
    tests = _tests(_parse(value_at(data, name)), data)
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
        return [_case(*pair, found.get("fn_name")) for pair in zip(inputs, outputs, strict=True)]
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
        return CodeTest(setup=_python(setup), code=_python(entry))
    if isinstance(entry, Mapping) and {"input", "output"} <= entry.keys():
        function = entry.get("fn_name") or (data.get("fn_name") if entry.get("testtype") == "functional" else None)
        return _case(entry["input"], entry["output"], function)
    raise NoAnswerError(f"{entry!r:.80} is no format of a test")


def _case(given: Any, expected: Any, function: str | None) -> Test:
    if function is None:
        return StreamTest(stdin=_lines(given), stdout=_lines(expected))
    if isinstance(given, str):  # LiveCodeBench writes each argument as JSON on its own line.
        given, expected = [_json(line) for line in given.splitlines() if line.strip()], _json(expected)
    return CallTest(function=function, arguments=list(given), result=expected)


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
    """Return a file of tests as one test. A function `check` in it is called with the task's ``entry_point``."""
    entry, tree = data.get("entry_point"), ast.parse(_python(code))
    has_check = any(isinstance(each, ast.FunctionDef) and each.name == "check" for each in tree.body)
    if has_check and isinstance(entry, str):
        # LeetCode's data sets have `Solution().name` here.
        code = f"{code}\n\ncheck({entry.rpartition('.')[2]})\n"
    if not any(isinstance(each, ast.Assert | ast.Expr) for each in ast.parse(_python(code)).body):
        raise NoAnswerError("it has no statement `assert`, and no `check` with a column `entry_point`")
    return CodeTest(setup="", code=code)


def _python(code: str) -> str:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError) as error:
        raise NoAnswerError(f"{code!r:.80} is neither JSON nor Python ({error})") from error
    return code
