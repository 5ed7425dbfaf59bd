"""The environment and the workflow `verifiers`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from rllm_core.contracts.environment import Environment, EnvironmentPlugin
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.workflow import OpenedRun, Workflow, WorkflowPlugin
from rllm_envs.hosted import SESSION_KEYS, read_params
from rllm_envs.installed import require
from rllm_envs.verifiers.options import VerifiersParams

if TYPE_CHECKING:
    from rllm_core.schema.run_config import RunConfig

NAME = "verifiers"


def _require() -> None:
    require("verifiers", "verifiers")
    require("rllm_gateway", "verifiers")


def _environment() -> Callable[[Any], Environment]:
    _require()
    from rllm_envs.verifiers.tasks import VerifiersTasks

    return VerifiersTasks


def _check(params: VerifiersParams) -> None:
    _require()
    from rllm_envs.verifiers.loading import check_environment

    check_environment(params)


def environments() -> Iterable[EnvironmentPlugin[Any]]:
    yield EnvironmentPlugin(
        name=NAME,
        summary="Environments of verifiers (v1), for example verifiers:gsm8k-v1.",
        params=VerifiersParams,
        load=_environment,
        check=_check,
        family_option="id",
        # A prompt contains all turns until then.
        defaults={"rllm.workflow.name": NAME, "data.max_prompt_length": 8192, "data.max_response_length": 1024},
    )


def _workflow() -> Callable[..., Workflow]:
    _require()
    from rllm_envs.verifiers.workflow import VerifiersWorkflow

    return VerifiersWorkflow


def _check_run(config: RunConfig, params: NoParams) -> None:
    _require()
    from rllm_gateway.serving.checks import check_sdk

    read_params(config, NAME, VerifiersParams, "id")
    check_sdk(config.rllm.sdk)


@asynccontextmanager
async def _open(run: OpenedRun, params: NoParams) -> AsyncIterator[Any]:
    from rllm_envs.verifiers.opening import open_environment
    from rllm_gateway.serving.opening import open_gateway
    from rllm_serving.process_directory import ProcessDirectory

    with ProcessDirectory("rllm-gateway-") as files:
        async with (
            open_gateway(run, files.path) as gateway,
            open_environment(run, read_params(run.config, NAME, VerifiersParams, "id"), gateway) as opened,
        ):
            yield opened


def workflows() -> Iterable[WorkflowPlugin[Any]]:
    yield WorkflowPlugin(
        name=NAME,
        summary="Runs episodes of verifiers. The environment `verifiers` sets it.",
        load=_workflow,
        check_run=_check_run,
        open=_open,
        needs_environment=True,
        gives_rewards=True,
        renders_elsewhere=True,
        config_keys=SESSION_KEYS,
    )
