"""The command line of `rllm eval`, taken apart: environments, and the model by name, folder, run or address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from rllm.cli import read_request
from rllm.evaluation.plans import PlayPlan, plan_to_play
from rllm.evaluation.playing import Job
from rllm.planning import check_to_play
from rllm.training import tasks_of
from rllm_core.errors import ConfigError

ENDPOINT = "endpoint"
"""The backend that samples from an address."""


def jobs_of(
    words: Sequence[str], model: str | None, model_name: str | None, files: Sequence[str], flags: Mapping[str, Any]
) -> list[Job]:
    """What to play: one job for each leading word that is no ``key=value``; without one what the configuration names.

    Raises:
        ConfigError: a configuration is wrong, there are no tasks, they cannot be played, or an environment is named
            twice.
    """
    count = next((index for index, word in enumerate(words) if "=" in word), len(words))
    environments, overrides = words[:count], list(words[count:])
    for name, times in Counter(environments).items():
        if times > 1:
            raise ConfigError("duplicate-choice", f"Environment {name!r} is named {times} times.", "Name it once.")
    flags = dict(flags)
    if is_address(model):
        flags["backend"] = flags.get("backend") or ENDPOINT
        overrides += [] if model_name is None else [f"{ENDPOINT}.model={model_name}"]
    elif model_name is not None:
        raise click.UsageError("--model-name goes with a --model that is an address, such as http://host/v1.")
    heads = [[environment] for environment in environments] or [[]]
    return [_job([*head, *overrides], model, files, flags) for head in heads]


def is_address(model: str | None) -> bool:
    """Whether a model is sampled from over HTTP."""
    return model is not None and model.startswith(("http://", "https://"))


def checkpoint_of(model: str) -> str:
    """The newest checkpoint, where `model` is the folder of a run; else `model` itself."""
    latest = Path(model).expanduser() / "checkpoints" / "latest"
    return str(latest) if latest.exists() else model


def _job(words: Sequence[str], model: str | None, files: Sequence[str], flags: Mapping[str, Any]) -> Job:
    meant = model if model is None or is_address(model) else checkpoint_of(model)
    play = plan_to_play(read_request(words, meant, files, flags))
    tasks = tasks_of(play.plan, "val")
    if not tasks:
        raise ConfigError(
            "no-validation-tasks",
            "There are no validation tasks to play.",
            "Name some: --data FILE, or data.val_dataset.",
        )
    check_to_play(play.plan, tasks)
    return Job(name=_name(play), play=play, tasks=tasks)


def _name(play: PlayPlan) -> str:
    """The environment; of a run without one, its workflow."""
    environment = play.plan.environment
    if environment is None:
        return play.plan.workflow.plugin.name
    return play.plan.config.rllm.env.name if play.plan.config.rllm.env.name != "none" else environment.plugin.name
