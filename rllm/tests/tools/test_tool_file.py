"""Functions in files, which are tried before a run and opened once for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error

from rllm.tools import plugin
from rllm.tools.options import ToolCallingParams
from rllm.tools.tool_file import load_function
from rllm.tools.toolbox import load_tools
from rllm_core.contracts.workflow import OpenedRun
from rllm_core.errors import ConfigError
from rllm_core.schema.run_config import RunConfig

Write = Callable[[str], Path]


def test_functions_of_one_file_share_its_variables(tool_file: Write) -> None:
    path = tool_file("seen = []\ndef put(x: int) -> None: seen.append(x)\ndef get() -> list[int]: return seen\n")
    put, get = (load_function(f"{path}:{name}") for name in ("put", "get"))
    put(3)
    assert get() == [3]
    tool_file("def get() -> int: return 200\n")
    assert load_function(f"{path}:get")() == 200


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
    (record,) = plugin.workflows()
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
