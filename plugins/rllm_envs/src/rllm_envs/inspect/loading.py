"""The tasks of the environment `inspect`: tasks of inspect from a file or a package, and their samples."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from inspect_ai import Task, task_with
from inspect_ai._eval.loader import create_file_tasks, load_task_spec
from inspect_ai._util.error import PrerequisiteError
from inspect_ai._util.module import load_module
from inspect_ai._util.path import chdir_python
from inspect_ai._util.registry import (
    is_registry_object,
    registry_find,
    registry_info,
    registry_lookup,
    registry_unqualified_name,
)
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.model._model import init_active_model, init_model_roles
from inspect_ai.model._util import resolve_model_roles
from inspect_ai.util._display import display_type_initialized, init_display_type
from rich.errors import MarkupError
from rich.text import Text

from rllm_core.contracts.environment import Split
from rllm_core.data.types import Task as RllmTask
from rllm_core.errors import ConfigError, did_you_mean
from rllm_envs.hosted import WorkflowEnvironment
from rllm_envs.inspect.model import FindSession, Models, make_models
from rllm_envs.inspect.options import POLICY, InspectParams
from rllm_envs.tasks import HostedTask

SAMPLE, SPLIT = "sample", "split"
"""Keys of a task's data."""


class InspectTasks(WorkflowEnvironment):
    """The samples of a task. inspect runs its own solvers and scorers."""

    workflow = "inspect"

    @classmethod
    def tasks(cls, split: Split, params: InspectParams) -> Sequence[RllmTask]:
        """Return a task for each sample of a split.

        Raises:
            ConfigError: the task cannot be loaded, has too few samples, or does not separate training from validation.
        """
        separate = params.train_args is not None
        if split == "train" and not separate and params.val_size is None:
            raise ConfigError(
                "bad-value",
                f"All samples of 'inspect:{params.task}' are for validation, and none for training.",
                "Set rllm.env.env_args.val_size to a number, or rllm.env.env_args.train_args={split: train}.",
            )
        task = load_task(params, (params.train_args or {}) if split == "train" else {}, load_models(params))
        samples = list_samples(task)
        ids = list(samples)
        held_out = params.val_size or 0
        is_all = split == "train" and not separate and held_out == len(ids)
        if (split == "val" or not separate) and (held_out > len(ids) or is_all):
            raise ConfigError(
                "too-few-tasks",
                f"Task 'inspect:{params.task}' has {len(ids)} samples, and rllm.env.env_args.val_size is {held_out}"
                f"{', so none is for training' if is_all else ''}.",
                "Set rllm.env.env_args.val_size to a smaller number.",
            )
        if split == "train":
            ids = ids if separate else ids[: len(ids) - held_out]
            ids = ids[: params.train_size]
        elif params.val_size is not None:
            ids = ids[:held_out] if separate else ids[len(ids) - held_out :]
        # Ids of different splits must differ.
        suffix = "-train" if separate and split == "train" else ""
        return [
            HostedTask(
                id=f"{task.name}-{each}{suffix}",
                data={SAMPLE: each, SPLIT: split},
                data_source=task.name,
                original=partial(_content_of, samples[each]),
            )
            for each in ids
        ]


def _content_of(sample: Sample) -> dict[str, Any]:
    """Return the content of a sample. Its messages have random ids, which are not in it."""
    messages = sample.input
    asked = messages if isinstance(messages, str) else [[each.role, each.text] for each in messages]
    rest = {"target": sample.target, "choices": sample.choices, "metadata": sample.metadata, "setup": sample.setup}
    return {"input": asked, "files": sample.files, **rest}


GRADER = "grader"
"""The role of the model in the scorers of inspect."""

FRAME = re.compile(r'^ *File "(.+)", line (\d+)', re.MULTILINE)


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
    arguments = {**params.args, **changes}
    with _explain(params):
        roles = resolve_model_roles(models.roles) or {}
        init_active_model(models.policy, GenerateConfig())
        init_model_roles(roles)
        file = _file(params.task)
        tasks = _load_named(params.task, arguments) if file is None else [_load_from_file(file, params.task, arguments)]
    if len(tasks) != 1:
        names = ", ".join(task.name for task in tasks)
        raise ConfigError(
            "unknown-choice",
            f"rllm.env.name: inspect:{params.task} has {len(tasks)} tasks: {names}.",
            "Write the name of the task after the file: inspect:FILE.py@NAME.",
        )
    (task,) = tasks
    # A model that the task sets itself would be evaluated instead of the policy.
    task.model = None
    own = task.model_roles or {}
    task.model_roles = {GRADER: roles[GRADER], **own, **{role: roles[role] for role in params.model_roles}}
    return task


def list_samples(task: Task) -> dict[str, Sample]:
    """Return the samples of a task by id. Samples without an id get their number, as in inspect.

    Raises:
        ConfigError: two samples have the same id.
    """
    samples: dict[str, Sample] = {}
    for number, sample in enumerate(task.dataset, start=1):
        if sample.id is None:
            sample.id = number
        if str(sample.id) in samples:
            raise ConfigError(
                "duplicate-task-id",
                f"Task {task.name!r} of inspect has two samples with the id {str(sample.id)!r}.",
                "Give each sample a different id. 1 and '1' are the same. A sample without an id gets its number.",
            )
        samples[str(sample.id)] = sample
    return samples


def scorer_names(task: Task) -> list[str]:
    """Return the names of the task's scorers, in order."""
    return [registry_unqualified_name(each) for each in task.scorer or ()]


def check_task(params: InspectParams) -> None:
    """Load the task of each split, and check its scorers and roles. No sample runs.

    Raises:
        ConfigError: a file, package, scorer or API key is missing, the task rejects its arguments, or two samples have
            the same id.
    """
    models = load_models(params)
    for changes in ({}, *(() if params.train_args is None else (params.train_args,))):
        task = load_task(params, changes, models)
        list_samples(task)
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


def _split(name: str) -> tuple[str, str]:
    """Return the file and the name of ``FILE.py@NAME`` or ``FILE.py:NAME``. The name may be empty."""
    file, separator, task = name.rpartition(".py:")
    if separator:
        return f"{file}.py", task
    file, _, task = name.partition("@")
    return file, task


def _file(name: str) -> Path | None:
    """Return the file of a task. None for a registered name."""
    file = Path(_split(name)[0])
    return file if file.suffix == ".py" else None


def _load_from_file(file: Path, name: str, arguments: Mapping[str, Any]) -> Task:
    """Load a task of a file. No other task of the file is made."""
    path = file.absolute()
    # inspect ignores files that it cannot parse, or that have no decorator.
    with chdir_python(path.parent.as_posix()):
        values = vars(load_module(path)).values()
    found = [each for each in values if is_registry_object(each) and registry_info(each).type == "task"]
    # The others are imported.
    own = [each for each in found if each.__module__ == path.as_posix()] or found
    names = list(dict.fromkeys(registry_info(each).name for each in own))
    chosen = _split(name)[1] or (names[0] if len(names) == 1 else "")
    if not chosen and names:
        raise ConfigError(
            "unknown-choice",
            f"rllm.env.name: inspect:{name} has {len(names)} tasks: {', '.join(names)}.",
            f"Write the name of the task after the file, such as inspect:{file}@{names[0]}.",
        )
    if registry_lookup("task", chosen) is None:
        hint = did_you_mean(chosen, names) or f"Its tasks: {', '.join(names)}."
        raise ConfigError(
            "unknown-choice",
            f"rllm.env.name=inspect:{name}: {file} has no task{f' {chosen!r}' if chosen else ''}.",
            hint if names else "Write @task above a function that returns a Task.",
        )
    _check_arguments(chosen, arguments)
    (task,) = create_file_tasks(path, [chosen], dict(arguments))
    return task


def _load_named(name: str, arguments: Mapping[str, Any]) -> list[Task]:
    """Load a task that an installed package registers, or the tasks of another form of inspect, such as a notebook."""
    is_registered = registry_lookup("task", name) is not None
    if is_registered:
        _check_arguments(name, arguments)
    tasks: list[Task] = load_task_spec(name, dict(arguments))
    if not tasks:
        package = name.partition("/")[0]
        names = [registry_info(each).name for each in registry_find(lambda info: info.type == "task")]
        raise ConfigError(
            "missing-package",
            f"rllm.env.name=inspect:{name}: no installed package registers this task.",
            did_you_mean(name, [each for each in names if each.startswith(f"{package}/")])
            or "Install its package, such as `pip install inspect-evals`, or write a file: inspect:FILE.py@NAME.",
        )
    for task in tasks if not is_registered else ():
        if is_registry_object(task):
            _check_arguments(registry_info(task).name, arguments)
    return tasks


def _check_arguments(task: str, arguments: Mapping[str, Any]) -> None:
    """Check the names of arguments. inspect prints a warning and ignores unknown ones.

    Raises:
        ConfigError: the function of the task does not have an argument.
    """
    function: Any = registry_lookup("task", task)
    parameters = inspect.signature(function).parameters
    if any(each.kind == inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return
    for name in arguments:
        if name not in parameters:
            raise ConfigError(
                "unknown-choice",
                f"rllm.env.env_args: the task {task!r} has no argument {name!r}.",
                did_you_mean(name, parameters) or f"Its arguments: {', '.join(parameters) or 'none'}.",
            )


def find_place(frames: str, task: str) -> str:
    """Return the last file and line of a task's own code: `` (sums.py, line 9)``. Empty if there is none.

    Args:
        frames: a traceback.
        task: the option `InspectParams.task`.
    """
    file, package = _file(task), task.partition("/")[0]
    found = ""
    for name, line in FRAME.findall(frames):
        if name == str(file.absolute()) if file else package in Path(name).parts:
            found = f" ({file or name}, line {line})"
    return found


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
    except Exception as error:
        place = find_place("".join(traceback.format_tb(error.__traceback__)), params.task)
        if isinstance(error, ModuleNotFoundError) and error.name:
            raise ConfigError(
                "missing-package",
                f"{spec} needs the module {error.name!r}, which is not installed{place}.",
                f"Install the package that contains the module {error.name!r} with pip.",
            ) from error
        message = str(error)
        if isinstance(error, PrerequisiteError):
            with suppress(MarkupError):
                message = Text.from_markup(message).plain
        message = " ".join(message.split()).rstrip(".")
        raise ConfigError(
            "environment-options-rejected",
            f"{spec} cannot be loaded: {type(error).__name__}: {message}{place}.",
            "Set the environment variable, or choose a different model in rllm.env.env_args.model_roles."
            if "defined in the environment" in message
            else "Correct rllm.env.name, rllm.env.env_args, or the task.",
        ) from error
