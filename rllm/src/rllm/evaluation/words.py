"""Parse the command line of `rllm eval`: environments, and the model by name, directory, run or address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from rllm.cli import read_request
from rllm.evaluation.plans import EvaluationPlan, plan_evaluation
from rllm.evaluation.rollouts import Job
from rllm.planning import check_evaluation
from rllm.planning.validation_option import find_validation_option
from rllm.training import load_tasks
from rllm_core.errors import ConfigError

ENDPOINT = "endpoint"
"""The backend that samples from an address."""


def build_jobs(
    words: Sequence[str], model: str | None, model_name: str | None, files: Sequence[str], flags: Mapping[str, Any]
) -> list[Job]:
    """Return one job for each leading word without ``=``. Without such a word, the configuration sets the environment.

    Raises:
        ConfigError: a configuration is wrong, there are no tasks, the tasks cannot be run, or an environment is listed
            twice.
    """
    count = next((index for index, word in enumerate(words) if "=" in word), len(words))
    environments, overrides = words[:count], list(words[count:])
    for name, times in Counter(environments).items():
        if times > 1:
            raise ConfigError("duplicate-choice", f"Environment {name!r} is listed {times} times.", "List it once.")
    flags = dict(flags)
    if is_address(model):
        flags["backend"] = flags.get("backend") or ENDPOINT
        overrides += [] if model_name is None else [f"{ENDPOINT}.model={model_name}"]
    elif model_name is not None:
        raise click.UsageError("--model-name needs a --model that is an address, such as http://host/v1.")
    heads = [[environment] for environment in environments] or [[]]
    return [_job([*head, *overrides], model, files, flags) for head in heads]


def is_address(model: str | None) -> bool:
    """True if the model is at an HTTP address."""
    return model is not None and model.startswith(("http://", "https://"))


def find_latest_checkpoint(model: str) -> str:
    """Return the newest checkpoint if `model` is the directory of a run. Otherwise return `model`."""
    latest = Path(model).expanduser() / "checkpoints" / "latest"
    return str(latest) if latest.exists() else model


def _job(words: Sequence[str], model: str | None, files: Sequence[str], flags: Mapping[str, Any]) -> Job:
    meant = model if model is None or is_address(model) else find_latest_checkpoint(model)
    evaluation = plan_evaluation(read_request(words, meant, files, flags))
    tasks = load_tasks(evaluation.plan, "val")
    if not tasks:
        raise ConfigError(
            "no-validation-tasks",
            "There are no validation tasks.",
            f"Add {find_validation_option(evaluation.plan) or '--data FILE'}.",
        )
    check_evaluation(evaluation.plan, tasks)
    return Job(name=_name(evaluation), evaluation=evaluation, tasks=tasks)


def _name(evaluation: EvaluationPlan) -> str:
    """Return the environment's name. For a run without an environment, return the workflow's name."""
    environment = evaluation.plan.environment
    if environment is None:
        return evaluation.plan.workflow.plugin.name
    return (
        evaluation.plan.config.rllm.env.name
        if evaluation.plan.config.rllm.env.name != "none"
        else environment.plugin.name
    )
