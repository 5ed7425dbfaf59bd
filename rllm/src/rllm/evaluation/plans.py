"""The evaluations of a command line. Each has an environment, its plan and its tasks.

The model is a name, a directory, a run or an address. A checkpoint is evaluated with the config of its run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from rllm.cli import Request, plan_for, read_request
from rllm.config import COMMAND_LINE, Tier, covers, split_key, where_acts
from rllm.config.choices import BACKEND_KEY, chosen_backend, registry_for
from rllm.config.layers import Layer, layer_from_file, layers_from_overrides
from rllm.config.merge import merge_layers
from rllm.config.paths import KeyPath, value_at
from rllm.config.saved_config import remove_keys, select_core_values, select_values
from rllm.planning import RunPlan, check_evaluation
from rllm.planning.preflight import find_validation_option
from rllm.runs.plugin_check import read_used_plugins
from rllm.training import load_tasks
from rllm.training.starting import saved_config, saved_value
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError, PluginError, RllmError
from rllm_core.plugins.discovery import IN_PROCESS
from rllm_core.schema.run_config import RunConfig


@dataclass(frozen=True)
class EvaluationPlan:
    """The plan of an evaluation, and the run that its model comes from."""

    plan: RunPlan
    run: Path | None
    """The directory of the run whose config is used; None: no run's."""

    @property
    def model(self) -> str:
        """The model as the configuration names it."""
        return str(self.plan.composed.value(self.plan.backend.plugin.model_key))

    def acts(self, key: str) -> bool:
        """True if a dotted key of the configuration can change the results of an evaluation.

        False for a backend's key that is shared with the core, because the core's key decides.
        """
        backend = self.plan.backend.plugin
        if key.split(".")[0] in RunConfig.model_fields:
            return where_acts(RunConfig, split_key(key)) == "rollout"
        shared = any(key == each.native for each in backend.shared_keys)
        return not shared and not any(covers(pattern, key) for pattern in backend.training_keys())


@dataclass(frozen=True, kw_only=True)
class Job:
    """One environment to evaluate."""

    name: str
    evaluation: EvaluationPlan
    tasks: Sequence[Task]

    @property
    def rollouts_per_task(self) -> int:
        return self.evaluation.plan.config.rllm.rollout.n_val

    @property
    def rollouts(self) -> int:
        """At all tasks together."""
        return len(self.tasks) * self.rollouts_per_task


def plan_evaluation(request: Request) -> EvaluationPlan:
    """Return the plan of a request. A checkpoint uses the config of its run if the environment is the same.

    Raises:
        ConfigError: as `make_plan`, or an override on the command line is only for training.
    """
    lower = config_of_checkpoint(request)
    run = Path(lower.origin).parent if lower else None
    try:
        plan = plan_for(request, [lower] if lower else [])
    except (ConfigError, PluginError) as error:
        raise _with_advice(error, run) from error
    evaluation = EvaluationPlan(plan, run)
    _refuse_training_keys(evaluation)
    return evaluation


def _with_advice(error: RllmError, run: Path | None) -> RllmError:
    """Return the error. If it concerns a plugin that a run's Python program registered, add a hint about that."""
    names = (
        [] if run is None else [each["name"] for each in read_used_plugins(run) if each["distribution"] == IN_PROCESS]
    )
    if not any(repr(name) in error.message or f"/{name}'" in error.message for name in names):
        return error
    return PluginError(
        error.code,
        f"{error.message} The Python program that started {run} registered it.",
        "Move the plugin into a module, and set 'rllm.plugins.import_modules=[MODULE]'. A run started with this key "
        "can be evaluated without the program.",
    )


def _refuse_training_keys(evaluation: EvaluationPlan) -> None:
    """Reject command-line keys that are only for training. Files may contain them, because they serve both."""
    composed = evaluation.plan.composed
    shared = {each.native for each in evaluation.plan.backend.plugin.shared_keys}
    for key in sorted(composed.by_user - shared):
        if composed.tiers[key] is Tier.COMMAND_LINE and not evaluation.acts(key):
            raise ConfigError(
                "unused-key",
                f"`{key}` (from {COMMAND_LINE}) has no effect: this command does not train.",
                "Remove it. Use rllm.rollout.n_val and sampling.val to configure rollouts.",
            )


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


OF_TRAINING = tuple(
    split_key(f"rllm.{key}")
    for key in (
        *("algorithm.adv_estimator", "algorithm.estimator_map", "algorithm.loss_fn", "algorithm.loss_map"),
        *(
            "transform.grouping",
            "sampler",
            "teacher",
            "rejection_sample",
            "pipeline",
            "trainer.logger",
            "trainer.observers",
        ),
    )
)
"""Keys that choose plugins for training. Rollouts do not need these plugins."""


def config_of_checkpoint(request: Request) -> Layer | None:
    """Return a layer with the config of the run that wrote the request's checkpoint. It goes beneath the request.

    None if the model is not a checkpoint, or if its run used a different environment: that run's prompts and lengths
    do not apply then. A checkpoint is the directory ``<run>/checkpoints/<step>``. Its model is in a subdirectory.
    """
    if request.model is None:
        return None
    path = Path(request.model).expanduser().absolute()
    runs = [directory.parent for directory in (path, *path.parents) if directory.name == "checkpoints"]
    saved = saved_config(_relative_path(runs[0])) if runs else None
    if saved is None:
        return None
    if request.environment not in (None, saved_value(saved, "rllm.env.name")):
        return None
    # No recipe exists for a checkpoint, so keep the values from the recipe of the run's original model.
    same = _read_backend(request) in (None, saved_value(saved, BACKEND_KEY))
    return (
        remove_keys(select_values(saved), _of_training(saved))
        if same
        else remove_keys(select_core_values(saved), OF_TRAINING)
    )


def _of_training(saved: Layer) -> list[KeyPath]:
    """Return `OF_TRAINING` and the names of these keys in the run's backend."""
    values = select_values(saved)
    shared = chosen_backend(registry_for([values]), [values]).shared_keys
    natives = {split_key(each.native): split_key(each.rllm) for each in shared}
    return [*OF_TRAINING, *(native for native, core in natives.items() if core in OF_TRAINING)]


def _read_backend(request: Request) -> str | None:
    """Return the backend that the request sets. None if it sets no backend."""
    given = [layer_from_file(file) for file in request.files] + layers_from_overrides(request.overrides)
    name = value_at(merge_layers(given, [RunConfig]).tree, split_key(BACKEND_KEY))
    return name.rpartition("/")[2] if isinstance(name, str) else None


def _relative_path(directory: Path) -> Path:
    """Return a path relative to the working directory if it is inside, as users write it."""
    return directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory
