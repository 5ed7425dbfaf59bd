"""The workflow `tool_calling` and the environment `trl`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_core.contracts.workflow import TURN_KEYS, OpenedRun, WorkflowPlugin
from rllm_core.lazy import call_lazily, load_from
from rllm_core.plugins import hookimpl

if TYPE_CHECKING:
    from rllm.builtin.tools.trl_environment import TrlEnvironmentParams
    from rllm.builtin.tools.workflow import ToolCallingParams

requires_api = 1


def _check(params: ToolCallingParams) -> None:
    from rllm.builtin.tools.toolbox import load_tools

    load_tools(params.tools)


def _sources(params: ToolCallingParams) -> dict[str, str]:
    from rllm.builtin.tasks.function_file import read_source

    return {path: text for tool in params.tools for path, text in read_source(tool).items()}


@asynccontextmanager
async def _open(run: OpenedRun, params: ToolCallingParams) -> AsyncIterator[Any]:
    """The tools of the files, read once for all rollouts."""
    from rllm.builtin.tools.toolbox import load_tools

    yield load_tools(params.tools)


def _source_of_trl(params: TrlEnvironmentParams) -> dict[str, str]:
    from rllm.builtin.tasks.function_file import read_source

    return read_source(params.factory)


def _check_trl_task(params: TrlEnvironmentParams, data: Mapping[str, Any]) -> None:
    from rllm.builtin.tasks.question import Question

    Question(params).reset(data)


@hookimpl
def rllm_environments() -> Iterable[EnvironmentPlugin[Any]]:
    yield EnvironmentPlugin(
        name="trl",
        summary="Environments written for TRL's environment_factory: a class whose methods are tools.",
        load_params=load_from("rllm.builtin.tools.trl_environment", "TrlEnvironmentParams"),
        load=load_from("rllm.builtin.tools.trl_environment", "TrlEnvironment"),
        check=call_lazily("rllm.builtin.tools.trl_environment", "check_factory"),
        sources=_source_of_trl,
        check_task=_check_trl_task,
        defaults={"rllm.workflow.name": "tool_calling"},
    )


@hookimpl
def rllm_workflows() -> Iterable[WorkflowPlugin[Any]]:
    yield WorkflowPlugin(
        name="tool_calling",
        summary="Several turns with tool calls: functions in files, or the environment's tools.",
        load_params=load_from("rllm.builtin.tools.workflow", "ToolCallingParams"),
        load=load_from("rllm.builtin.tools.workflow", "ToolCallingWorkflow"),
        check=_check,
        sources=_sources,
        open=_open,
        calls_tools=True,
        one_role=True,
        needs_environment=True,
        config_keys=TURN_KEYS,
    )
