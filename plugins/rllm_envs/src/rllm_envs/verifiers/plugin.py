"""The environment and the workflow `verifiers`, with options. Its packages are imported only if a run needs them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pydantic import Field

from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_core.contracts.plugin import NoParams, Params
from rllm_core.contracts.workflow import WorkflowPlugin
from rllm_envs.extra import Extra
from rllm_envs.hosted import SESSION_KEYS, check_gateway_run
from rllm_envs.seeds import LARGEST_SPLIT, SEEDS

if TYPE_CHECKING:
    from rllm_core.schema.run_config import RunConfig

ENDLESS_TRAIN_SIZE = 1000
"""Number of training tasks if a taskset is endless and the user sets no number."""


NAME = "verifiers"
_EXTRA = Extra("verifiers", ("verifiers", "rllm_gateway"))


class VerifiersParams(Params):
    """Options of ``verifiers``."""

    id: str = Field(min_length=1, description="Id of the taskset: the name of an installed Python module.")
    env: str | None = Field(
        None, min_length=1, description="Id of the environment that plays the taskset, such as best-of-n or user-sim."
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="Settings of the environment, such as {taskset: {split: train}, agent: {max_turns: 4}}. They are "
        "the options `--env.*` of `vf-eval`.",
    )
    val_taskset: dict[str, Any] | None = Field(
        None,
        description="Settings of the taskset for validation, such as {split: test}. By default, validation uses the "
        "tasks after the training tasks.",
    )
    trained: list[str] | None = Field(
        None, min_length=1, description="Seats to train. By default, all seats that the environment marks trainable."
    )
    train_size: int | None = Field(
        None,
        gt=0,
        le=LARGEST_SPLIT,
        description="Number of training tasks. By default, all tasks, or 1000 if the taskset is endless.",
    )
    val_size: int = Field(0, ge=0, le=LARGEST_SPLIT, description="Number of validation tasks.")
    seed: int = Field(0, ge=0, lt=SEEDS, description="Seed of Python's random numbers while tasks are loaded.")


def environments() -> Iterable[EnvironmentPlugin[Any]]:
    yield EnvironmentPlugin(
        name=NAME,
        summary="Environments of verifiers (v1), for example verifiers:gsm8k-v1.",
        params=VerifiersParams,
        load=_EXTRA.load_from("rllm_envs.verifiers.tasks", "VerifiersTasks"),
        check=_EXTRA.call_lazily("rllm_envs.verifiers.loading", "check_environment"),
        family_option="id",
        # A prompt contains all turns until then.
        defaults={"rllm.workflow.name": NAME, "data.max_prompt_length": 8192, "data.max_response_length": 1024},
    )


def _check_run(config: RunConfig, params: NoParams) -> None:
    _EXTRA.check_installed()
    check_gateway_run(config, NAME, VerifiersParams, "id")


def workflows() -> Iterable[WorkflowPlugin[Any]]:
    yield WorkflowPlugin(
        name=NAME,
        summary="Runs episodes of verifiers. The environment `verifiers` sets it.",
        load=_EXTRA.load_from("rllm_envs.verifiers.workflow", "VerifiersWorkflow"),
        check_run=_check_run,
        open=_EXTRA.call_lazily("rllm_envs.verifiers.opening", "open_run"),
        needs_environment=True,
        gives_rewards=True,
        renders_elsewhere=True,
        config_keys=SESSION_KEYS,
    )
