"""Load a task of inspect from a file or an installed package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inspect_ai import Task, task_with
from inspect_ai._eval.loader import create_file_tasks, load_task_spec
from inspect_ai._util.registry import registry_params, registry_unqualified_name
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.model._model import init_active_model, init_model_roles
from inspect_ai.model._util import resolve_model_roles
from inspect_ai.util._display import display_type_initialized, init_display_type

from rllm_core.errors import ConfigError
from rllm_envs.inspect.model import FindSession, Models, make_models
from rllm_envs.inspect.options import POLICY, InspectParams

GRADER = "grader"
"""The role of the model in the scorers of inspect."""


def load_models(params: InspectParams, find_session: FindSession | None = None) -> Models:
    """Return the policy and the models of roles. By default, the policy is the model of the role `GRADER`.

    Raises:
        ConfigError: a package or an API key is missing.
    """
    with _explain(params):
        return make_models({GRADER: POLICY, **params.model_roles}, find_session)


def load_task(params: InspectParams, changes: Mapping[str, Any], models: Models) -> Task:
    """Load the task of the options.

    Args:
        params: the options.
        changes: arguments of the task that replace the arguments of the options.
        models: the models of its functions.

    Raises:
        ConfigError: a file or package is missing, or the task rejects its arguments.
    """
    if not display_type_initialized():
        init_display_type("none")
    with _explain(params):
        roles = resolve_model_roles(models.roles) or {}
        init_active_model(models.policy, GenerateConfig())
        init_model_roles(roles)
        arguments = {**params.args, **changes}
        specification, file = _specification(params.task), _file(params.task)
        if file is not None and "@" not in specification:
            # inspect would read the file's name as a pattern of names.
            tasks = create_file_tasks(file.absolute(), None, arguments)
        else:
            tasks = load_task_spec(specification, arguments)
    if not tasks and file is None:
        raise ConfigError(
            "missing-package",
            f"rllm.env.name=inspect:{params.task}: no installed package registers this task.",
            "Install its package, for example with `pip install inspect-evals`, or write a file: inspect:FILE.py@NAME.",
        )
    if len(tasks) != 1:
        names = ", ".join(task.name for task in tasks)
        raise ConfigError(
            "unknown-choice",
            f"rllm.env.name: inspect:{params.task} has {len(tasks)} tasks{': ' if names else ''}{names}.",
            "Write the name of the task after the file: inspect:FILE.py@NAME.",
        )
    (task,) = tasks
    accepted = registry_params(task)
    if unknown := sorted(arguments.keys() - accepted.keys()):
        raise ConfigError(
            "unknown-choice",
            f"rllm.env.env_args: the task {task.name!r} has no argument {', '.join(map(repr, unknown))}.",
            f"Its arguments: {', '.join(accepted) or 'none'}.",
        )
    # A model that the task sets itself would be evaluated instead of the policy.
    task.model = None
    own = task.model_roles or {}
    task.model_roles = {GRADER: roles[GRADER], **own, **{role: roles[role] for role in params.model_roles}}
    return task


def list_samples(task: Task) -> dict[str, Sample]:
    """Return the samples of a task by id. Samples without an id get their number, as in inspect."""
    samples = {}
    for number, sample in enumerate(task.dataset, start=1):
        if sample.id is None:
            sample.id = number
        samples[str(sample.id)] = sample
    return samples


def scorer_names(task: Task) -> list[str]:
    """Return the names of the task's scorers, in order."""
    return [registry_unqualified_name(each) for each in task.scorer or ()]


def check_task(params: InspectParams) -> None:
    """Load the task of each split, and check its scorers and roles. No sample runs.

    Raises:
        ConfigError: a file, package, scorer or API key is missing, or the task rejects its arguments.
    """
    models = load_models(params)
    for changes in ({}, *(() if params.train_args is None else (params.train_args,))):
        task = load_task(params, changes, models)
        names = scorer_names(task)
        if not names:
            raise ConfigError(
                "bad-task",
                f"Task 'inspect:{params.task}' has no scorer, so its rollouts have no reward.",
                "Add an argument to its Task(…), such as scorer=match().",
            )
        if params.reward is not None and params.reward.partition(".")[0] not in names:
            raise ConfigError(
                "unknown-choice",
                f"rllm.env.env_args.reward: {params.reward!r} is not a scorer of 'inspect:{params.task}'.",
                f"Its scorers: {', '.join(names)}.",
            )


def limit_turns(task: Task, most: int) -> Task:
    """Return the task with at most `most` model calls per sample. A smaller limit of the task still applies."""
    return task_with(task, turn_limit=min(most, task.turn_limit or most))


def _specification(name: str) -> str:
    """Return the name of a task in the form of inspect. Its separator is ``@``."""
    file, separator, task = name.rpartition(".py:")
    return f"{file}.py@{task}" if separator else name


def _file(name: str) -> Path | None:
    """Return the file of a task. None for a registered name."""
    file = Path(_specification(name).partition("@")[0])
    return file if file.suffix == ".py" else None


@contextmanager
def _explain(params: InspectParams) -> Iterator[None]:
    """Turn errors of inspect and of the task's function into errors that name the key to change."""
    spec = f"inspect:{params.task}"
    file = _file(params.task)
    try:
        if file is not None and not file.is_file():
            raise ConfigError(
                "unknown-choice",
                f"rllm.env.name={spec}: no file {file}.",
                "Write a path from the current directory, such as inspect:tasks/sums.py@sums.",
            )
        yield
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        raise ConfigError(
            "missing-package",
            f"{spec} needs the module {error.name!r}, which is not installed.",
            f"Install the package that contains the module {error.name!r} with pip.",
        ) from error
    except Exception as error:
        message = " ".join(str(error).split())
        raise ConfigError(
            "environment-options-rejected",
            f"{spec} cannot be loaded: {type(error).__name__}: {message.rstrip('.')}.",
            "Correct rllm.env.name, rllm.env.env_args, or the task.",
        ) from error
