"""The workflow `tool_calling`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from rllm.tools.options import ToolCallingParams
from rllm_core.contracts.workflow import OpenedRun, WorkflowPlugin
from rllm_core.lazy import load_from


def _check(params: ToolCallingParams) -> None:
    from rllm.tools.toolbox import load_tools

    load_tools(params.tools)


@asynccontextmanager
async def _open(run: OpenedRun, params: ToolCallingParams) -> AsyncIterator[Any]:
    """The tools of the files, read once for all attempts."""
    from rllm.tools.toolbox import load_tools

    yield load_tools(params.tools)


def workflows() -> Iterable[WorkflowPlugin[Any]]:
    yield WorkflowPlugin(
        name="tool_calling",
        summary="Several turns with tool calls: functions in files, or the environment's tools.",
        params=ToolCallingParams,
        load=load_from("rllm.tools.workflow", "ToolCallingWorkflow"),
        check=_check,
        open=_open,
        calls_tools=True,
        one_role=True,
        needs_environment=True,
        config_keys=frozenset(
            {
                "rllm.accumulate_reasoning",
                "rllm.agent.name",
                "rllm.agent.agent_args",
                "rllm.agent.max_steps",
                "rllm.reward",
            }
        ),
    )
