"""The environment and the workflow `inspect`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllm_core.contracts.environment import Environment, EnvironmentPlugin
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.workflow import OpenedRun, Workflow, WorkflowPlugin
from rllm_envs.hosted import SESSION_KEYS, read_params
from rllm_envs.inspect.options import InspectParams
from rllm_envs.installed import require

if TYPE_CHECKING:
    from rllm_core.schema.run_config import RunConfig

NAME = "inspect"


def _require() -> None:
    require("inspect_ai", NAME)
    require("openai", NAME)
    require("rllm_gateway", NAME)


def _environment() -> Callable[[Any], Environment]:
    _require()
    from rllm_envs.inspect.tasks import InspectTasks

    return InspectTasks


def _check(params: InspectParams) -> None:
    _require()
    from rllm_envs.inspect.loading import check_task

    check_task(params)


def _sources(params: InspectParams) -> dict[str, str]:
    """Return the file of the task, if it has one."""
    before, suffix, _ = params.task.partition(".py")
    file = Path(before + suffix).expanduser()
    return {str(file): file.read_text(encoding="utf-8")} if suffix and file.is_file() else {}


def environments() -> Iterable[EnvironmentPlugin[Any]]:
    yield EnvironmentPlugin(
        name=NAME,
        summary="Tasks of inspect-ai, for example inspect:inspect_evals/gsm8k or inspect:FILE.py@NAME.",
        params=InspectParams,
        load=_environment,
        check=_check,
        sources=_sources,
        family_option="task",
        # A prompt contains all earlier turns.
        defaults={"rllm.workflow.name": NAME, "data.max_prompt_length": 8192, "data.max_response_length": 1024},
    )


def _workflow() -> Callable[..., Workflow]:
    _require()
    from rllm_envs.inspect.workflow import InspectWorkflow

    return InspectWorkflow


def _check_run(config: RunConfig, params: NoParams) -> None:
    _require()
    from rllm_gateway.serving.checks import check_sdk

    read_params(config, NAME, InspectParams, "task")
    check_sdk(config.rllm.sdk)


@asynccontextmanager
async def _open(run: OpenedRun, params: NoParams) -> AsyncIterator[Any]:
    from rllm_envs.inspect.running import open_task
    from rllm_gateway.serving.opening import open_gateway
    from rllm_serving.process_directory import ProcessDirectory

    with ProcessDirectory("rllm-gateway-") as files:
        async with (
            open_gateway(run, files.path) as gateway,
            open_task(run, read_params(run.config, NAME, InspectParams, "task"), gateway, files.path) as opened,
        ):
            yield opened


def workflows() -> Iterable[WorkflowPlugin[Any]]:
    yield WorkflowPlugin(
        name=NAME,
        summary="Runs samples of inspect-ai. The environment `inspect` sets it.",
        load=_workflow,
        check_run=_check_run,
        open=_open,
        needs_environment=True,
        gives_rewards=True,
        renders_elsewhere=True,
        config_keys=SESSION_KEYS,
    )
