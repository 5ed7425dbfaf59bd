"""The environment and the workflow `inspect`, with options. Its packages are imported only if a run needs them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_core.contracts.plugin import NoParams, Params
from rllm_core.contracts.workflow import WorkflowPlugin
from rllm_envs.extra import Extra
from rllm_envs.hosted import SESSION_KEYS, check_gateway_run
from rllm_envs.seeds import LARGEST_SPLIT

if TYPE_CHECKING:
    from rllm_core.schema.run_config import RunConfig

POLICY = "policy"
"""Model of a role that the policy answers."""


NAME = "inspect"
_EXTRA = Extra("inspect", ("inspect_ai", "openai", "rllm_gateway"))


class InspectParams(Params):
    """Options of ``inspect``."""

    task: str = Field(
        min_length=1,
        description="The task: a registered name such as inspect_evals/gsm8k, or FILE.py or FILE.py@NAME.",
    )
    args: dict[str, Any] = Field(
        default_factory=dict, description="Arguments of the task's function, such as {fewshot: 5}."
    )
    train_args: dict[str, Any] | None = Field(
        None,
        description="Arguments that differ for training, such as {split: train}. All samples of the other split are "
        "then for validation.",
    )
    train_size: int | None = Field(
        None, gt=0, le=LARGEST_SPLIT, description="Number of training samples. By default, all."
    )
    val_size: int | None = Field(
        None,
        ge=0,
        le=LARGEST_SPLIT,
        description="Number of validation samples: the last samples of the task, or the first samples if train_args is "
        "set. By default, all.",
    )
    reward: str | None = Field(
        None,
        min_length=1,
        description="The score that is the reward: SCORER, or SCORER.KEY if its value is a dictionary. By default, the "
        "first scorer of the task.",
    )
    model_roles: dict[str, str | dict[str, Any]] = Field(
        default_factory=dict,
        description="Models of the task's roles: a name such as openai/gpt-5-mini, arguments of get_model() such as "
        "{model: …, base_url: …}, or `policy`. By default, the policy is the grader. Roles are never trained.",
    )
    sandbox: str | None = Field(
        None, min_length=1, description="Type of sandbox, such as docker or local. By default, the task's own."
    )
    log_dir: Path | None = Field(
        None, description="Directory for logs of inspect, which `inspect view` shows. By default, no log is kept."
    )


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
        load=_EXTRA.load_from("rllm_envs.inspect.loading", "InspectTasks"),
        check=_EXTRA.call_lazily("rllm_envs.inspect.loading", "check_task"),
        sources=_sources,
        family_option="task",
        # A prompt contains all earlier turns.
        defaults={"rllm.workflow.name": NAME, "data.max_prompt_length": 8192, "data.max_response_length": 1024},
    )


def _check_run(config: RunConfig, params: NoParams) -> None:
    _EXTRA.check_installed()
    check_gateway_run(config, NAME, InspectParams, "task")


def workflows() -> Iterable[WorkflowPlugin[Any]]:
    yield WorkflowPlugin(
        name=NAME,
        summary="Runs samples of inspect-ai. The environment `inspect` sets it.",
        load=_EXTRA.load_from("rllm_envs.inspect.workflow", "InspectWorkflow"),
        check_run=_check_run,
        open=_EXTRA.call_lazily("rllm_envs.inspect.running", "open_run"),
        needs_environment=True,
        gives_rewards=True,
        renders_elsewhere=True,
        config_keys=SESSION_KEYS,
    )
