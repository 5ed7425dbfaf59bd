"""The plugins, and what listing it costs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rllm.tools import plugin
from rllm.tools.options import ToolCallingParams
from rllm_core.contracts.workflow import OpenedRun
from rllm_core.errors import ConfigError
from rllm_core.schema.run_config import RunConfig


def test_listing_the_plugin_imports_neither_numpy_nor_what_plays() -> None:
    script = "import sys; from rllm.tools.plugin import workflows; list(workflows()); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200)
    modules = set(done.stdout.split())
    assert {name for name in modules if name.startswith("rllm.tools.")} == {"rllm.tools.plugin", "rllm.tools.options"}
    assert "numpy" not in modules


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


def test_the_record_can_be_shown() -> None:
    command = [sys.executable, "-m", "rllm", "plugins", "info", "workflow", "tool_calling"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    assert "tool_timeout" in done.stdout
