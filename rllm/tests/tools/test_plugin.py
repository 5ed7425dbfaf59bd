"""The plugins, and what listing it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from rllm.tools import plugin
from rllm.tools.options import ToolCallingParams
from rllm_core.contracts.workflow import OpenedRun
from rllm_core.errors import ConfigError
from rllm_core.schema.run_config import RunConfig


def test_files_are_tried_before_a_run_and_opened_once_for_it(tool_file: Callable[[str], Path]) -> None:
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
